"""Evaluate encoders: features, protocols, results, and suites of data sets."""
