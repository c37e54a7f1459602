"""Pretrained encoders: load a run or public weights, and export."""
