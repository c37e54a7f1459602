"""Kinds of examples, a file each, which define ``kind``, a `jaxssl.data.kind.Kind`."""
