"""The folder of a run: its identity, lock and checkpoints."""
