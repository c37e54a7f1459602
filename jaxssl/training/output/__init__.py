"""Output of a run: text on the terminal, the log, metrics and other files."""
