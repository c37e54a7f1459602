"""Kinds of examples. Each file of this folder defines ``kind``, a `jaxssl.data.kind.Kind`."""
