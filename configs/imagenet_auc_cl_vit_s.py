"""AUC-CL on ImageNet with a ViT-S: the recommended loss, multi-crop.

Paper: Sharma et al., AUC-CL, ICLR 2024, Table 2.
Command: jaxssl train --config imagenet_auc_cl_vit_s
Expected (published, not run here): 70.7 % top-1, k-NN (k=10), 73.7 % linear, batch 256, 300
epochs.
Notes: Table 2 does not state patches of 16 pixels and MoCo-v3's projector and weight decay (0.1).
We take them because A.3.2 keeps MoCo-v3's architecture. The loss is the one of cifar10_auc_cl.
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet_auc_cl_r50


def get_config() -> ConfigDict:
    """Return the config of `imagenet_auc_cl_r50` with the settings that this recipe changes."""
    config = imagenet_auc_cl_r50.get_config()
    config.epochs = 300
    config.net = ConfigDict(
        {"name": "vit", "size": "small", "patch_size": 16}
    )  # Table 2 does not state these values.
    # This is MoCo-v3's projector. The AUC-CL paper does not state a projector.
    config.head = ConfigDict({"name": "mlp", "proj_hidden_dim": 4096, "proj_output_dim": 256})
    config.head.update(proj_layers=3, proj_last_norm="bn_fixed")
    config.optim.weight_decay = 0.1  # from MoCo-v3, not stated in the paper
    return config
