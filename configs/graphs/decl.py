"""DeCL on a set of the TU collection: GraphCL with another loss.

Paper: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, which
has no graphs. The setting is GraphCL's.
Command: jaxssl train --config graphs/decl --config.data.path=NCI1.zip
Expected: nothing is published.
Notes: All settings except the loss are GraphCL's. The combination is ours.
"""

from ml_collections import ConfigDict

from jaxssl.configs.graphs import graphcl


def get_config() -> ConfigDict:
    """Return the config of `graphcl` with the settings that this recipe changes."""
    config = graphcl.get_config()
    config.method = ConfigDict({"name": "siamese"})
    config.loss = ConfigDict({"name": "decl", "preset": "simclr"})
    return config
