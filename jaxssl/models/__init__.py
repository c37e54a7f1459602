"""Backbones and heads (flax linen). They know no losses.

A backbone's file has `net(**hyper) -> nn.Module`; the module is called with
``(images [n, h, w, c], *, train, axis_name=None, keys=None)`` and returns features [n, f]. With an
``axis_name``, BatchNorm in training uses the statistics of all devices. ``keys`` [n] are typed
random keys, one per image, for nets that drop something at random in training; None drops nothing.
A file whose networks do not take images names what they take as ``EXAMPLES``: "graph", "video" or
"text".
Results depend on an image's own key only, so a batch may be split over devices in any way.

Modules compute in the dtype of their inputs and parameters: cast both for half precision. The
running statistics and what norms and softmax compute stay float32.

Parameters below a module whose name starts with ``frozen_`` keep their first value: they get no
gradient, and an optimiser must not decay them.
"""
