"""Pretrained encoders: loading, weights of other projects, and export."""
