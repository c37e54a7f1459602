"""Backbones and heads (flax linen). They know no losses.

A backbone's file has `net(**hyper) -> nn.Module`; the module is called with
``(images [n, h, w, c], *, train, axis_name=None)`` and returns features [n, f]. With an
``axis_name``, BatchNorm in training uses the statistics of all devices.
"""
