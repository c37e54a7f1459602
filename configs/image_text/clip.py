"""CLIP, and DeCL in the setting of CLIP, on images with captions.

Papers: Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021;
DeCL: Chen et al., Why do We Need Large Batchsizes in Contrastive Learning?, NeurIPS 2022, Table 5.
Command: jaxssl train --config image_text/clip:VARIANT, with --config.data.path=FILE but for coco
Published, not run here: the results of the variants. flickr8k was run, see docs/image_text.md.
Zero-shot accuracy on CIFAR of a run on data without classes (the suite also explains ImageNet):
    jaxssl eval --suite zeroshot --workdir runs/RUN
Notes: Epochs, batch size and learning rate are OpenCLIP's for Conceptual Captions. Its warm-up and
FastCLIP's have 10 000 steps, and ours has an epoch, or 3.5 for FastCLIP. DeCL does not state batch
size and learning rate. Its temperature is learned as in CLIP, the rates are moving averages of each
pair, and steps of loss 1 and loss 2 alternate. Its table has the loss of both on held-out pairs:
eval.held_out_loss measures CLIP's loss for both. The settings of flickr8k are ours. With 800 images
it is no benchmark, but a check on a laptop that a loss learns at all.
"""

from jaxssl.configs import base

SHARED = {
    "views": 1,
    "head": {"name": "mlp", "proj_layers": 1, "proj_output_dim": 1024, "proj_last_bias": False},
    "method": {"name": "two_tower"},
    "loss": {"name": "clip"},
    "optim": {"lr": 1e-3, "weight_decay": 0.1},
    "eval": {"held_out_loss": True, "protocols": ("zeroshot:photo", "captions")},
}
OPEN_CLIP = {
    "batch_size": 1024,
    "epochs": 30,
    "augment": {"name": "clip"},
    "net": {"name": "clip_resnet", "size": "50"},
    "text": {"name": "text"},
    "precision": "bf16",
    "schedule": {"warmup_epochs": 1.0},
    "eval": {"every": 1.0},
    "checkpoint": {"every": 1.0},
}
CC3M = {
    "name": "captions",
    "train_split": "train[:2890000]",
    "test_split": "train[2890000:]",
    "on_error": "skip",  # Dead links in CC3M were saved as web pages instead of pictures.
}
FASTCLIP_GAMMA = {"schedule": "cosine", "start": 1.0, "end": 0.2, "until": 18, "unit": "epochs"}

VARIANTS = {
    "coco": {
        **OPEN_CLIP,
        "about": "COCO's captions, ResNet-50. Nothing is published for this data set alone",
        "data": {"name": "coco_captions", "test_split": "val"},
    },
    "cc3m_decl": {
        **OPEN_CLIP,
        "about": "DeCL: retrieval R@1 30.2/30.2, zero-shot 19.7/38.3 (CLIP 30.0/29.7, 19.2/37.3)",
        "data": CC3M,
        "augment": {"name": "clip", "size": 288},
        "net": {"name": "clip_resnet", "size": "50x4"},
        "text": {"name": "text", "dim": 640, "num_heads": 10},
        "head": {"proj_output_dim": 640},
        "method": {"name": "two_tower", "symmetric": True},
        "loss": {"name": "decl", "preset": "clip"},
    },
    "cc3m_fastclip": {  # FastCLIP-v2, 1 024 pairs in a batch. gamma falls for half of the epochs.
        **OPEN_CLIP,
        "about": "FastCLIP, 2024: batch and rate of its CC3M run; results in its Table 3",
        "epochs": 37,
        "data": CC3M,
        "schedule": {"warmup_epochs": 3.5},
        "loss": {"name": "fastclip", "gamma": FASTCLIP_GAMMA},
    },
    "flickr8k": {
        "about": "1 000 images of Flickr8k, a small network",
        "data": {"name": "captions", "context": 32}
        | {"train_split": "train[:800]", "test_split": "train[800:]"},
        "batch_size": 64,
        "epochs": 40,
        "augment": {"name": "clip", "size": 64, "crop_scale": (0.5, 1.0)},
        "net": {"name": "convnet", "widths": (32, 64, 128, 128), "strides": (2, 2, 2, 2)},
        "text": {"name": "text", "dim": 64, "layers": 2, "num_heads": 4, "context": 32},
        "head": {"proj_output_dim": 64},
        "schedule": {"warmup_epochs": 2.0},
    },
}

get_config = base.make_get_config(VARIANTS, SHARED)
