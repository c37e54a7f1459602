"""Data sets in the user's own files; each file is a value of `data.name`."""
