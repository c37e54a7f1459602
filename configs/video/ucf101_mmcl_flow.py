"""MMCL with S3D on UCF-101's optical flow.

Paper: Shah et al., Max-Margin Contrastive Learning, AAAI 2022, Table 5. The base is CoCLR's.
Command: jaxssl train --config video/ucf101_mmcl_flow --config.data.path=UCF-101-flow
Expected (published, not run here): split 1, 300 epochs: linear 68.01, retrieval R@1 50.94 (InfoNCE
66.8 and 45.2).
Notes: As in ucf101_mmcl_rgb. Flow is stored as pairs of pictures, see docs/video.md.
"""

from ml_collections import ConfigDict

from jaxssl.configs.video import ucf101_mmcl_rgb


def get_config() -> ConfigDict:
    """Return the config of `ucf101_mmcl_rgb` with optical flow as data."""
    return ucf101_mmcl_rgb.get_config()
