"""Evaluation protocols, one file each: k-NN, linear probe, fine-tuning and others.

A file of this folder that defines ``protocol``, a `jaxssl.evaluation.protocol.Protocol`, adds a
protocol with the name of the file. Most files also define ``evaluate``, the same computation as a
function of arrays, and `PRESETS`, the named settings.
"""
