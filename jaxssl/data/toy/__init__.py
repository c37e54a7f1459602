"""Small data sets that are bundled or generated, for demos and tests."""
