"""Pretraining: configs, training loop, training state, checkpoints and logs."""
