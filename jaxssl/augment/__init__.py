"""Data augmentation as JAX functions of a random key and an example, for use inside jit."""
