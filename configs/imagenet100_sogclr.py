"""SogCLR on ImageNet-100 with a ResNet-50.

Paper: Yuan et al., Provable Stochastic Optimization for Global Contrastive Learning, 2022, quoted
in Table 5 of AUC-CL.
Command: jaxssl train --config imagenet100_sogclr
Expected (published, not run here): 78.7 % top-1, linear, batch 256, 400 epochs (71.8 at 100, 76.3
at 200).
Notes: The last layer of the projector has no norm (our choice).
"""

from ml_collections import ConfigDict

from jaxssl.configs import imagenet100_simclr


def get_config() -> ConfigDict:
    """Return the config of `imagenet100_simclr` with the settings that this recipe changes."""
    config = imagenet100_simclr.get_config()
    config.net.depth = 50
    config.head.update(proj_hidden_dim=2048, proj_output_dim=128)
    config.loss = ConfigDict({"name": "sogclr", "temperature": 0.1, "gamma": 0.9})
    config.optim.update(name="lars", lr=0.075, lr_scaling="sqrt", weight_decay=1e-6)
    config.optim.update(trust_coefficient=1e-3, lars_clip=False)
    return config
