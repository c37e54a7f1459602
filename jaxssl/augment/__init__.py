"""Augmentation on the accelerator: key and example in, view out, inside jit."""
