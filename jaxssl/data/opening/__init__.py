"""Python objects and tar shards as data sets, and conversion of prepared sets."""
