"""MMCL on a set of the TU collection: GraphCL with another loss.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 4.
Command: jaxssl train --config graphs/mmcl --config.data.path=NCI1.zip
Expected: see docs/graphs.md, where it was run. Published, SVM over ten folds, 5 seeds: MUTAG 88.42,
REDDIT-BINARY 90.41, IMDB-BINARY 71.62, DD 78.74.
Notes: The paper does not state kernel and solver for graphs. The settings are the ones of ImageNet
(rbf, gamma 0.1, PGD).
"""

from ml_collections import ConfigDict

from jaxssl.configs.graphs import graphcl


def get_config() -> ConfigDict:
    """Return the config of `graphcl` with the settings that this recipe changes."""
    config = graphcl.get_config()
    config.loss = ConfigDict({"name": "mmcl"})
    return config
