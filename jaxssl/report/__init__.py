"""Reports: one self-contained HTML page about a run, or about several runs side by side.

`run_report` writes the page of a run, `comparison` the page that compares runs, and `results` reads
and writes results.json. The words and the markup of the pages are in `templates/`.
"""
