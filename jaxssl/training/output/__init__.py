"""What a run writes: the terminal, its log, metrics and other files."""
