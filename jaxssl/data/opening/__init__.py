"""Open data sets: prepare them once, or take them as Python objects."""
