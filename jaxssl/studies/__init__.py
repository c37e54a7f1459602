"""Studies, which test claims of papers: one file each, as described in `jaxssl.studies.study`."""
