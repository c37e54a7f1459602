"""AUC-CL on a set of the TU collection: GraphCL with another loss.

Paper: Sharma et al., AUC-CL, ICLR 2024, which has no graphs. The setting is GraphCL's.
Command: jaxssl train --config graphs/auc_cl --config.data.path=NCI1.zip
Expected: nothing is published.
Notes: All settings except the loss are GraphCL's. The combination is ours.
"""

from ml_collections import ConfigDict

from jaxssl.configs.graphs import graphcl


def get_config() -> ConfigDict:
    """Return the config of `graphcl` with the settings that this recipe changes."""
    config = graphcl.get_config()
    config.method = ConfigDict({"name": "siamese"})
    config.loss = ConfigDict({"name": "auc_cl", "preset": "recommended"})
    return config
