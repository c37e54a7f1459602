"""Vision transformers as MoCo-v3 trains them: fixed positions, a patch projection left at random.

References:
    Dosovitskiy et al., An Image Is Worth 16x16 Words, 2021;
    Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021.
"""

import math

import flax.linen as nn
import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._attention import attend
from jaxssl.models._norms import layer_norm

# size: dim, layers, heads. Small has MoCo-v3's 12 heads; DeiT and DINO give it 6.
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 12), "base": (768, 12, 12)}
POOLS = ("token", "mean")
POSITIONS = ("fixed", "learned")
XAVIER = nn.initializers.xavier_uniform()
# Xavier's bound for each of the three [dim, dim] matrices, not for the [dim, 3 dim] that holds
# them: sqrt(6 / (dim + dim)) is sqrt(3 / fan_in).
XAVIER_OF_THREE = nn.initializers.lecun_uniform()


class Patches(nn.Module):
    """Cuts images into squares and projects each: a convolution whose stride is its size.

    Attributes:
        dim: size of a patch's embedding.
        size: p, pixels a side of a patch.
        frozen: whether the projection gets no gradient; the images always do.
    """

    dim: int
    size: int
    frozen: bool

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Images [n, h, w, c] to [n, (h / p) (w / p), dim], row by row."""
        n, h, w, c = images.shape
        p = self.size
        x = images.reshape(n, h // p, p, w // p, p, c).swapaxes(2, 3)
        x = x.reshape(n, (h // p) * (w // p), p * p * c)
        kernel = self.param("kernel", XAVIER, (p * p * c, self.dim))
        bias = self.param("bias", nn.initializers.zeros, (self.dim,))
        if self.frozen:
            kernel, bias = lax.stop_gradient((kernel, bias))
        return x @ kernel + bias[None, None]


class Block(nn.Module):
    """Self-attention and a two-layer perceptron, each after a LayerNorm and added to its input.

    Attributes:
        heads: of the attention; they divide the size of a token.
        mlp_ratio: width of the perceptron over the size of a token.
    """

    heads: int
    mlp_ratio: int

    @nn.compact
    def __call__(self, x: Array, scale: Array | None) -> Array:
        """Tokens [n, t, dim] to tokens; ``scale`` [n, 2] multiplies what the two halves add."""
        n, t, dim = x.shape
        qkv = nn.Dense(3 * dim, kernel_init=XAVIER_OF_THREE, name="qkv")(layer_norm(x))
        q, k, v = jnp.moveaxis(qkv.reshape(n, t, 3, self.heads, dim // self.heads), 2, 0)
        y = attend(q, k, v).reshape(n, t, dim)
        y = nn.Dense(dim, kernel_init=XAVIER, name="attention_out")(y)
        x = x + (y if scale is None else y * scale[:, :1, None])
        y = nn.Dense(self.mlp_ratio * dim, kernel_init=XAVIER, name="mlp_in")(layer_norm(x))
        y = nn.Dense(dim, kernel_init=XAVIER, name="mlp_out")(nn.gelu(y, approximate=False))
        return x + (y if scale is None else y * scale[:, 1:, None])


class ViT(nn.Module):
    """A class token and the patches of an image through blocks of self-attention.

    Attributes:
        dim: size of a token and of the features.
        layers: how many blocks.
        heads: of each block's attention.
        patch_size: pixels a side of a patch.
        drop_path: rate of stochastic depth in the last layer.
        freeze_patches: whether the patch projection stays at its random start.
        pool: "token" (the class token) or "mean" (over the patches).
        mlp_ratio: width of the blocks' perceptrons over ``dim``.
        positions: "fixed" (see `positions`), or "learned": one more parameter for every token of
            a square grid, the class token's too.
        remat: whether the backward pass computes each block anew from its input.
    """

    dim: int
    layers: int
    heads: int
    patch_size: int
    drop_path: float = 0.0
    freeze_patches: bool = True
    pool: str = "token"
    mlp_ratio: int = 4
    positions: str = "fixed"
    remat: bool = False

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Images [n, h, w, c] to features [n, dim]; ``keys`` [n] are for stochastic depth.

        Raises:
            ValueError: if a side of the images is not a multiple of the patch, or they have
                another grid of patches than that of the learned positions.
        """
        del axis_name
        n, h, w, _ = x.shape
        p = self.patch_size
        if h % p or w % p:
            raise ValueError(
                f"the sides of images must be multiples of net.patch_size {p}, got {h} x {w}"
            )
        name = "frozen_patches" if self.freeze_patches else "patches"
        x = Patches(self.dim, p, self.freeze_patches, name=name)(x)
        if self.positions == "fixed":
            x = x + jnp.asarray(positions(h // p, w // p, self.dim), x.dtype)[None]
        token = self.param("token", nn.initializers.normal(1e-6), (self.dim,))
        x = jnp.concatenate([jnp.broadcast_to(token[None, None], (n, 1, self.dim)), x], axis=1)
        if self.positions == "learned":
            x = x + self._learned_positions(h // p, w // p)[None]
        scales = [None] * self.layers
        if train and keys is not None and self.drop_path > 0:
            drawn = depth_scales(keys, layers=self.layers, drop_path=self.drop_path)
            scales = jnp.moveaxis(drawn.astype(x.dtype), 1, 0)
        # Of the call, not of the class: a class would give the parameters another name.
        run = nn.remat(Block.__call__) if self.remat else Block.__call__
        for scale in scales:
            x = run(Block(self.heads, self.mlp_ratio), x, scale)
        x = layer_norm(x)
        return x[:, 0] if self.pool == "token" else jnp.mean(x[:, 1:], axis=1)

    def _learned_positions(self, rows: int, columns: int) -> Array:
        """[1 + rows * columns, dim], a parameter of the grid that the network started with."""
        p, count = self.patch_size, rows * columns
        if self.has_variable("params", "positions"):
            count = self.get_variable("params", "positions").shape[0] - 1
        side = math.isqrt(count)
        # A number of patches tells one grid from another only if grids are square.
        if (rows, columns) != (side, side):
            raise ValueError(
                f"net.positions 'learned' are those of square images, here of {side * p} x "
                f"{side * p} pixels, got {rows * p} x {columns * p}"
            )
        return self.param("positions", nn.initializers.normal(0.02), (1 + count, self.dim))


def net(
    *,
    size: str = "small",
    patch_size: int = 16,
    drop_path: float = 0.0,
    frozen_patches: bool = True,
    pool: str = "token",
    num_heads: int | None = None,
    dim: int | None = None,
    layers: int | None = None,
    positions: str = "fixed",
    remat: bool = False,
) -> nn.Module:
    """A `ViT` for images of any sides that are multiples of the patch.

    Args:
        size: "tiny" (192 wide), "small" (384) or "base" (768), of 12 layers each.
        patch_size: pixels a side of a patch, >= 1.
        drop_path: rate of stochastic depth in the last layer, in [0, 1); see `depth_scales`.
        frozen_patches: whether the patch projection stays at its random start (MoCo-v3's trick
            for stable training).
        pool: what the features are after the last norm: "token", the class token, or "mean", the
            mean over the patches.
        num_heads: of the attention, in place of the size's: 3, 12 (MoCo-v3's; DeiT has 6), 12.
        dim: of the tokens and features, in place of the size's; a multiple of 4 and of the heads.
        layers: in place of the size's, >= 1.
        positions: "fixed" sines and cosines, for images of any sides, or "learned", for square
            images of the one size that the network starts with (DeiT's, DINO's).
        remat: keep of each block only its input, and compute the block once more in the backward
            pass. It costs one more forward pass, a quarter more operations, and saves all
            activations but the inputs and one block's (docs/scaling.md); not on CPUs. Parameters,
            values and gradients are the same.

    Raises:
        ValueError: on a value out of its range.
    """
    if size not in SIZES:
        raise ValueError(f"net.size must be one of {tuple(SIZES)}, got {size!r}")
    if pool not in POOLS:
        raise ValueError(f"net.pool must be one of {POOLS}, got {pool!r}")
    if positions not in POSITIONS:
        raise ValueError(f"net.positions must be one of {POSITIONS}, got {positions!r}")
    if not 0 <= drop_path < 1:
        raise ValueError(f"net.drop_path must be in [0, 1), got {drop_path}")
    given = zip((dim, layers, num_heads), SIZES[size], strict=True)
    dim, layers, num_heads = (usual if own is None else own for own, usual in given)
    for name, value in (("patch_size", patch_size), ("layers", layers), ("num_heads", num_heads)):
        if value < 1:
            raise ValueError(f"net.{name} must be >= 1, got {value}")
    if dim < 4 or dim % 4 or dim % num_heads:
        raise ValueError(
            f"net.dim must be a multiple of 4 and of net.num_heads {num_heads}, got {dim}"
        )
    return ViT(
        dim,
        layers,
        num_heads,
        patch_size,
        drop_path,
        frozen_patches,
        pool,
        positions=positions,
        remat=remat,
    )


def positions(rows: int, columns: int, dim: int) -> np.ndarray:
    r"""Fixed positions of a grid of patches: sines and cosines of the row, then of the column.

    .. math:: (\sin r\omega_k, \cos r\omega_k, \sin c\omega_k, \cos c\omega_k),
        \quad \omega_k = 10000^{-4k/d}, \quad k = 0 \dots d/4 - 1

    Args:
        rows: of the grid.
        columns: of the grid.
        dim: d, a multiple of 4.

    Returns:
        [rows * columns, dim] float32, row by row.

    References:
        Chen, Xie and He, 2021; the order of the four parts is the released code's.
    """
    omega = 10000.0 ** (-np.arange(dim // 4) / (dim // 4))
    row, column = np.mgrid[:rows, :columns].reshape(2, -1, 1) * omega
    parts = [np.sin(row), np.cos(row), np.sin(column), np.cos(column)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def depth_scales(keys: Array, *, layers: int, drop_path: float) -> Array:
    r"""Stochastic depth: factors on what each half of each layer adds to an image's tokens.

    A factor of layer l = 0 .. L - 1 is 0 with probability r_l = drop_path l / (L - 1), else
    1 / (1 - r_l), so that its mean is 1. Halves, layers and images are independent.

    Args:
        keys: [n] typed random keys, one per image.
        layers: L, >= 1; a single layer drops nothing.
        drop_path: the last layer's rate, in [0, 1).

    Returns:
        [n, layers, 2] float32: of attention and perceptron.

    References:
        Huang et al., Deep Networks with Stochastic Depth, 2016.
    """
    keep = jnp.asarray(1 - np.linspace(0, drop_path, layers), jnp.float32)[None, :, None]
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (layers, 2)))(keys)
    return jnp.where(drawn < keep, 1 / keep, 0)
