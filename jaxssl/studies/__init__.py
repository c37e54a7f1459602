"""Studies, which test claims of papers: one file each, as `jaxssl.studies.study` describes."""
