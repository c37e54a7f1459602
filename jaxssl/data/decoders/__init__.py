"""Read files and archives, and decode pictures, clips, graphs and captions."""
