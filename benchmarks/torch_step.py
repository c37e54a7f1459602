"""SimCLR's training step in PyTorch, as fast as its users make it; for `train_step.py`."""

import math

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

VERSION = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JITTER, HUE, TEMPERATURE = 0.8, 0.2, 0.2
# RGB to luma and two colour axes, which a change of hue turns.
YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])


def network(name: str) -> tuple[nn.Module, int]:
    """A backbone without classifier, and how many features it has."""
    if name == "vit_s":
        net = torchvision.models.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=12, hidden_dim=384, mlp_dim=1536
        )
        net.heads = nn.Identity()
        return net, 384
    net = getattr(torchvision.models, name)()
    features, net.fc = net.fc.in_features, nn.Identity()
    if name == "resnet18":  # CIFAR's stem
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return net, features


def views_of(images: Tensor, size: int) -> Tensor:
    """One view of each image [n, 3, h, w] in [0, 1]: crop, flip, jitter in a fixed order, grey."""
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


def nt_xent(z: Tensor) -> Tensor:
    """Of embeddings [2 b, d], both views one after the other."""
    n = len(z)
    z = F.normalize(z.float())
    logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    partner = (torch.arange(n, device=z.device) + n // 2) % n
    return F.cross_entropy(logits, partner)


class TrainStep:
    """A step on images that lie on the device."""

    def __init__(self, name: str, batch: int, precision: str) -> None:
        torch.set_float32_matmul_precision("high")  # TF32, as JAX has it by default
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
        """One step; the loss."""
        chosen = torch.randperm(len(self.images), device=DEVICE)[: self.batch]
        images = self.images[chosen].float() / 255
        with torch.no_grad():
            x = self.views(torch.cat([images, images]), self.size)
        loss = self.loss(x.contiguous(memory_format=torch.channels_last))
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss

    def wait(self, loss: Tensor) -> float:
        """Until the device is done."""
        return loss.item()
