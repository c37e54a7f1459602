"""The folder of a run: its record, lock and checkpoints."""
