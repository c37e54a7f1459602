"""Evaluation protocols, one file each: k-NN, linear probe, fine-tuning and others.

A file of this folder that defines ``protocol``, a `jaxssl.evaluation.protocol.Protocol`, adds a
protocol with the name of the file. Most files also define ``evaluate``, the same computation as a
function of arrays, and `PRESETS`, the named settings.

The ``evaluate`` of `knn`, `linear`, `fewshot` and `retrieval` have the same arguments:

    train_features: [n, f] numbers, which are converted to float32.
    train_labels: [n] integers >= 0, the classes of the rows of train_features.
    test_features: [m, f] numbers, which are converted to float32.
    test_labels: [m] integers >= 0, the classes of the rows of test_features.
    preset: a key of `PRESETS` of the file, or "default".
    seed: seed of the random draws, for `linear` and `fewshot`.
    **settings: values that replace values of the preset, such as k=20 for `knn`.

They return a dict of numbers, and raise ValueError, which names the argument, if a shape, a dtype,
a setting or the preset is invalid. docs/evaluation.md has examples and lists the presets.
"""
