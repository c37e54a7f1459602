"""Pretraining: configs, the training loop, its state, checkpoints and logs."""
