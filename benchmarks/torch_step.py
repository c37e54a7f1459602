"""A training step in PyTorch with the usual optimisations, for `train_step.py`."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VERSION = f"torch {torch.__version__}"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JITTER, HUE, TEMPERATURE = 0.8, 0.2, 0.2
# The matrix maps RGB to luma and two colour axes, which a change of hue rotates.
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])


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

    luma = YIQ[0].to(device).view(1, 3, 1, 1)
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
    matrix = torch.linalg.inv(YIQ).to(device) @ turn @ YIQ.to(device)
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


def descend(loss: Tensor, optimiser: torch.optim.Optimizer) -> Tensor:
    """Take an optimiser step and return the loss."""
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss


class SmallStep:
    """PyTorch training step of a small network of strided convolutions, without augmentation.

    Args:
        views: [2 b, h, w, c] float32: all first views, then all second views.
        widths: channels of each convolution.
        strides: stride of each convolution.
        hidden: width of the projector's hidden layer.
        loss: "nt_xent" or "auc_cl".
        hyper: arguments of the loss.
        optim: "lr" and "weight_decay" of AdamW, which decays only matrices.
        compiled: True to use `torch.compile`.
        half: True to compute in bf16.
    """

    def __init__(
        self,
        views: np.ndarray,
        *,
        widths: Sequence[int],
        strides: Sequence[int],
        hidden: int,
        loss: str,
        hyper: Mapping[str, Any],
        optim: Mapping[str, float],
        compiled: bool,
        half: bool,
    ) -> None:
        if DEVICE == "cpu":
            torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many threads as XLA uses
        layers, channels = [], views.shape[3]
        for width, stride in zip(widths, strides, strict=True):
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, hidden, bias=False)]
        layers += [nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 128)]
        self.model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)
        self.b = nn.Parameter(torch.zeros((), device=DEVICE))
        self.half, self.hyper = half, dict(hyper)
        self.loss_fn = {"nt_xent": nt_xent, "auc_cl": self._auc_cl}[loss]
        params = [*self.model.parameters(), *([self.b] if loss == "auc_cl" else [])]
        groups = [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": optim["weight_decay"]},
            {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=optim["lr"], fused=True)
        x = torch.from_numpy(np.array(views)).permute(0, 3, 1, 2).to(DEVICE)
        self.x = x.contiguous(memory_format=torch.channels_last)
        self.loss = torch.compile(self._loss) if compiled else self._loss

    def _auc_cl(self, z: Tensor, **hyper: Any) -> Tensor:
        return auc_cl(z, self.b, **hyper)

    def _loss(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            return self.loss_fn(self.model(x), **self.hyper)

    def step(self) -> Tensor:
        """Take a training step and return the loss."""
        loss = self.loss(self.x)
        return descend(loss, self.optimiser)

    def wait(self, loss: Tensor) -> float:
        """Wait until the device has finished, and return the loss."""
        return loss.item()


class TrainStep:
    """PyTorch training step on images in the device's memory."""

    def __init__(self, name: str, batch: int, precision: str) -> None:
        torch.set_float32_matmul_precision("high")  # This allows TF32, which is JAX's default.
        torch.backends.cudnn.benchmark = True
        self.size = 32 if name == "resnet18" else 224
        self.batch, self.half = batch, precision == "bf16"
        net, features = network(name)
        norm = nn.BatchNorm1d(512)
        head = nn.Sequential(nn.Linear(features, 512), norm, nn.ReLU(), nn.Linear(512, 128))
        self.model = nn.Sequential(net, head).to(DEVICE, memory_format=torch.channels_last)
        fused = {"fused": True} if DEVICE == "cuda" else {}
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=1e-3, weight_decay=1e-6, **fused
        )
        shape = (2 * batch, 3, self.size, self.size)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
        self.views = torch.compile(views_of)
        self.loss = torch.compile(self._loss)

    def _loss(self, x: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            return nt_xent(self.model(x))

    def step(self) -> Tensor:
        """Take a training step and return the loss."""
        chosen = torch.randperm(len(self.images), device=DEVICE)[: self.batch]
        images = self.images[chosen].float() / 255
        with torch.no_grad():
            x = self.views(torch.cat([images, images]), self.size)
        loss = self.loss(x.contiguous(memory_format=torch.channels_last))
        return descend(loss, self.optimiser)

    def wait(self, loss: Tensor) -> float:
        """Wait until the device has finished, and return the loss."""
        return loss.item()
