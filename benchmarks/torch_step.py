"""A training step in PyTorch with the usual optimisations, for `train_step.py`."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VERSION = f"torch {torch.__version__}"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JITTER, HUE, TEMPERATURE = 0.8, 0.2, 0.2
# The matrix maps RGB to luma and two colour axes, which a change of hue rotates.
# It and its inverse lie on the device: a copy in each step would wait for the step before.
YIQ = torch.tensor(
    [[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]], device=DEVICE
)
RGB = torch.linalg.inv(YIQ)


def network(name: str) -> tuple[nn.Module, int]:
    """Return a backbone without classifier, and its number of features."""
    import torchvision  # Small networks do not need torchvision, so it is imported here.

    if name == "vit_s":
        net = torchvision.models.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=12, hidden_dim=384, mlp_dim=1536
        )
        net.heads = nn.Identity()
        return net, 384
    net = getattr(torchvision.models, name)()
    features, net.fc = net.fc.in_features, nn.Identity()
    if name == "resnet18":  # CIFAR images need a small stem.
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return net, features


def convolutions(channels: int, widths: Sequence[int], strides: Sequence[int]) -> list[nn.Module]:
    """Return the layers of a small backbone: strided convolutions, BatchNorm, ReLU, pooling."""
    layers = []
    for before, width, stride in zip((channels, *widths), widths, strides, strict=False):
        layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def views_of(images: Tensor, size: int) -> Tensor:
    """Augment images [n, 3, h, w] in [0, 1]: crop, flip, jitter in a fixed order, grey."""
    n, device = len(images), images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n, 1, 1, 1, device=device).uniform_(low, high)

    area, ratio = uniform(0.08, 1), torch.exp(uniform(-1, 1) * math.log(4 / 3))
    w, h = ((area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1))
    sign = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1] = (w * sign).flatten(), h.flatten()
    theta[:, 0, 2] = ((1 - w) * uniform(-1, 1)).flatten()
    theta[:, 1, 2] = ((1 - h) * uniform(-1, 1)).flatten()
    grid = F.affine_grid(theta, (n, 3, size, size), align_corners=False)
    x = F.grid_sample(images, grid, align_corners=False, padding_mode="border")

    luma = YIQ[0].view(1, 3, 1, 1)
    y = (x * uniform(1 - JITTER, 1 + JITTER)).clamp(0, 1)
    mean = (y * luma).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    y = (mean + (y - mean) * uniform(1 - JITTER, 1 + JITTER)).clamp(0, 1)
    grey = (y * luma).sum(1, keepdim=True)
    y = (grey + (y - grey) * uniform(1 - JITTER, 1 + JITTER)).clamp(0, 1)
    angle = uniform(-HUE, HUE).flatten() * 2 * math.pi
    turn = torch.zeros(n, 3, 3, device=device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = torch.cos(angle)
    turn[:, 2, 1], turn[:, 1, 2] = torch.sin(angle), -torch.sin(angle)
    matrix = RGB @ turn @ YIQ
    y = torch.einsum("ncd,ndhw->nchw", matrix, y).clamp(0, 1)
    x = torch.where(uniform(0, 1) < 0.8, y, x)
    x = torch.where(uniform(0, 1) < 0.2, (x * luma).sum(1, keepdim=True), x)
    return x * 2 - 1


def nt_xent(z: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Compute NT-Xent of embeddings [2 b, d]: all first views, then all second views."""
    n = len(z)
    z = F.normalize(z.float())
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    partner = (torch.arange(n, device=z.device) + n // 2) % n
    return F.cross_entropy(logits, partner)


def auc_cl(z: Tensor, b: Tensor, *, a: float, alpha: float, weight: float, unit: bool) -> Tensor:
    """Compute AUC-CL's loss (2024, eq. 8).

    Args:
        z: embeddings [2 b, d]: all first views, then all second views.
        b: trained target of the negatives.
        a: target of the positives.
        alpha: weight of the margin term.
        weight: weight of the sum over the negatives.
        unit: True for similarities (1 + cosine) / 2.
    """
    n = len(z)
    z = F.normalize(z.float())
    s = z @ z.T
    s = (1 + s) / 2 if unit else s
    row = torch.arange(n, device=z.device)
    partner = (row + n // 2) % n
    p = s[row, partner]
    other = (row[None] != row[:, None]) & (row[None] != partner[:, None])
    negative = torch.where(other, (s - b) ** 2 + 2 * alpha * s, 0.0).sum(1)
    return ((p - a) ** 2 + 2 * alpha * (1 - p) - alpha**2 + weight * negative).mean()


def make_step(
    model: nn.Module,
    loss_fn: Callable[[Tensor], Tensor],
    views: Callable[[], Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    half: bool,
    mode: str | None,
) -> Callable[[], Tensor]:
    """Return a function that takes a training step and returns the loss.

    Args:
        model: maps views to embeddings.
        loss_fn: maps embeddings to the loss.
        views: returns the input of a step.
        optimiser: updates the parameters.
        half: True to compute in bf16.
        mode: of `torch.compile`, or None to run eagerly.
    """

    def loss_of(x: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
            return loss_fn(model(x))

    if mode:
        loss_of = torch.compile(loss_of, mode=mode)

    def step() -> Tensor:
        loss = loss_of(views())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    return step


def small_step(
    config: Any, views: np.ndarray, half: bool, mode: str | None
) -> Callable[[], Tensor]:
    """Return the step of a small network of strided convolutions, without augmentation.

    Args:
        config: of our run, with the loss "nt_xent" or "auc_cl". AdamW decays only matrices.
        views: [2 b, h, w, c] float32: all first views, then all second views.
        half: True to compute in bf16.
        mode: of `torch.compile`, or None to run eagerly.
    """
    if DEVICE == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many threads as XLA uses
    widths, hidden = config.net.widths, config.head.proj_hidden_dim
    layers = convolutions(views.shape[3], widths, config.net.strides)
    layers += [nn.Linear(widths[-1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, 128)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)
    params, loss = [*model.parameters()], config.loss
    if loss.name == "auc_cl":
        b = nn.Parameter(torch.zeros((), device=DEVICE))
        params.append(b)
        mean = loss.get("negative_reduction") == "mean"
        weight = loss.negative_weight / (len(views) - 2 if mean else 1)
        unit = loss.similarity == "unit"
        loss_fn = partial(auc_cl, b=b, a=loss.a, alpha=loss.alpha, weight=weight, unit=unit)
    else:
        loss_fn = partial(nt_xent, temperature=loss.temperature)
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": config.optim.weight_decay},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=config.optim.lr, fused=True)
    x = torch.from_numpy(np.array(views)).permute(0, 3, 1, 2).to(DEVICE)
    x = x.contiguous(memory_format=torch.channels_last)
    return make_step(model, loss_fn, lambda: x, optimiser, half=half, mode=mode)


def large_step(name: str, batch: int, half: bool, mode: str) -> Callable[[], Tensor]:
    """Return the step of a network of `network` on images in the device's memory.

    ``mode`` is the argument of `torch.compile`.
    """
    torch.set_float32_matmul_precision("high")  # This allows TF32, which is JAX's default.
    torch.backends.cudnn.benchmark = True
    size = 32 if name == "resnet18" else 224
    net, features = network(name)
    norm = nn.BatchNorm1d(512)
    head = nn.Sequential(nn.Linear(features, 512), norm, nn.ReLU(), nn.Linear(512, 128))
    model = nn.Sequential(net, head).to(DEVICE, memory_format=torch.channels_last)
    fused = {"fused": True} if DEVICE == "cuda" else {}
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, **fused)
    shape = (2 * batch, 3, size, size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    augment = torch.compile(views_of)

    def views() -> Tensor:
        chosen = images[torch.randperm(len(images), device=DEVICE)[:batch]].float() / 255
        with torch.no_grad():
            x = augment(torch.cat([chosen, chosen]), size)
        return x.contiguous(memory_format=torch.channels_last)

    return make_step(model, nt_xent, views, optimiser, half=half, mode=mode)
