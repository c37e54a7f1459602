"""Methods: training pipelines from a batch to a loss."""
