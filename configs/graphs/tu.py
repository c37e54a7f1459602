"""GraphCL on a data set of the TU collection, and variants with another loss.

Papers: You et al., Graph Contrastive Learning with Augmentations, NeurIPS 2020, Table 4; Shah et
al., Max-Margin Contrastive Learning, AAAI 2022, Table 4. AUC-CL, DeCL and SimCLR have no graphs.
Command: jaxssl train --config graphs/tu:VARIANT --config.data.path=NCI1.zip
Expected: see docs/graphs.md. The published results of the variants are
accuracies of an SVM over ten folds, 5 seeds.
Notes: All settings except the loss are GraphCL's. BatchNorm sees both views together. "subgraph"
keeps 80 % of the nodes. The released code keeps 20 % of the nodes, around one node. Nodes that have
lost all edges stay. The code adds self-loops to the unchanged graph and starts linear layers from
Xavier's distribution. MMCL does not state kernel and solver for graphs. The kernel is the one of
ImageNet (rbf, gamma 0.1), and PGD has 200 accelerated steps, where the paper has up to 1000.
"""

from jaxssl.configs import base

SHARED = {
    # The logged k-NN uses these splits. The SVM takes all graphs.
    "data": {"name": "tu", "bank_split": "train[:80%]", "test_split": "train[80%:]"},
    "batch_size": 128,
    "epochs": 20,
    # The first view is the unchanged graph. The loss contrasts it with an augmented copy.
    "augment": {"name": "graph", "choices": ()},
    "second_view": {"choices": ("drop_nodes", "subgraph")},
    "net": {"name": "gin"},
    "head": {"name": "mlp", "proj_hidden_dim": 96, "proj_output_dim": 96, "proj_norm": "none"},
    "optim": {"name": "adam", "lr": 0.01, "weight_decay": 0.0},
    "schedule": {"name": "constant"},
    "eval": {"every": 5.0, "knn": "moco_v3_20", "protocols": ("svm",)},
}
TWO_TOWER = {"method": {"name": "two_tower"}}

VARIANTS = {
    "graphcl": {
        **TWO_TOWER,
        "about": "NCI1 77.87, MUTAG 86.80, REDDIT-BINARY 89.53, IMDB-BINARY 71.14, DD 78.62",
        "loss": {"name": "graphcl"},
    },
    "mmcl": {
        **TWO_TOWER,
        "about": "MUTAG 88.42, REDDIT-BINARY 90.41, IMDB-BINARY 71.62, DD 78.74",
        "loss": {"name": "mmcl"},
    },
    "auc_cl": {"about": "Our combination", "loss": {"name": "auc_cl", "preset": "recommended"}},
    "decl": {"about": "Our combination", "loss": {"name": "decl", "preset": "simclr"}},
    "nt_xent": {"about": "Our combination", "loss": {"name": "nt_xent", "temperature": 0.2}},
}

get_config = base.make_get_config(VARIANTS, SHARED)
