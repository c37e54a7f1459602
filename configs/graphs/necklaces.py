"""SimCLR's loss on made graphs, rings with pendants: the demo of graphs.

Paper: Chen et al., SimCLR, 2020. All settings except the loss are ours.
Command: jaxssl train --config graphs/necklaces
Expected: seed 0, linear (fast) 90.50 %; untrained 52.00, raw counts 26.50, chance 25.
"""

from ml_collections import ConfigDict

from jaxssl.configs import base


def get_config() -> ConfigDict:
    """Return the config of `base` with the settings that this config changes."""
    config = base.get_config()
    config.data.name = "necklaces"
    config.batch_size = 64
    config.epochs = 20
    config.augment = ConfigDict({"name": "graph", "choices": ("drop_nodes", "subgraph")})
    config.net = ConfigDict({"name": "gin"})
    config.head.update(proj_hidden_dim=96, proj_output_dim=96, proj_norm="none")
    config.loss = ConfigDict({"name": "nt_xent", "temperature": 0.2})
    config.optim.update(name="adam", lr=1e-3, weight_decay=0.0)
    config.eval.update(every=5.0, knn="moco_v3_20")
    config.eval.protocols = ("knn:moco_v3_20", "linear", "fewshot")
    return config
