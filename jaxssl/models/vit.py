"""Vision transformers, by default as in MoCo-v3 (fixed positions, frozen patch projection).

References:
    Dosovitskiy et al., An Image Is Worth 16x16 Words, 2021.
    Chen, Xie and He, An Empirical Study of Training Self-Supervised Vision Transformers, 2021.
"""

import flax.linen as nn
import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.models._layers import attend, layer_norm, require_choice, require_min
from jaxssl.models._transformer import ACTIVATIONS, Block, Inits, learned_positions, mlp

# Maps the size to (dim, layers, heads). MoCo-v3's "small" has 12 heads. DeiT's and DINO's have 6.
SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 12), "base": (768, 12, 12)}
POOLS = ("token", "mean", "attention")
POSITIONS = ("fixed", "learned", "rotary")
XAVIER = nn.initializers.xavier_uniform()
# The attention kernel [dim, 3 dim] holds three matrices [dim, dim]. Each needs its own Xavier bound
# sqrt(6 / (dim + dim)) = sqrt(3 / fan_in), which is LeCun's bound for the whole kernel.
XAVIER_OF_THREE = nn.initializers.lecun_uniform()


class Patches(nn.Module):
    """Patch embedding of a ViT: square patches of an image, each projected linearly.

    Attributes:
        dim: dimension of a patch embedding.
        size: p, side of a patch in pixels.
        frozen: whether to stop the gradient of the projection. The images always get a gradient.
    """

    dim: int
    size: int
    frozen: bool

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Map images [n, h, w, c] to patch embeddings [n, (h / p) (w / p), dim], row by row."""
        n, h, w, c = images.shape
        p = self.size
        x = images.reshape(n, h // p, p, w // p, p, c).swapaxes(2, 3)
        x = x.reshape(n, (h // p) * (w // p), p * p * c)
        kernel = self.param("kernel", XAVIER, (p * p * c, self.dim))
        bias = self.param("bias", nn.initializers.zeros, (self.dim,))
        if self.frozen:
            kernel, bias = lax.stop_gradient((kernel, bias))
        return x @ kernel + bias[None, None]


class AttentionPool(nn.Module):
    """Attention pooling with a learned query, then an MLP with a shortcut (SigLIP's "MAP" head).

    See `Block` for the attributes.

    References:
        Zhai et al., Scaling Vision Transformers, 2022, section 3.2.
    """

    heads: int
    mlp_dim: int | None
    activation: str
    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Pool tokens [n, t, dim] to features [n, dim]."""
        n, _, dim = x.shape
        query = self.param("query", XAVIER, (1, dim))
        # One kernel computes queries, keys and values, as public files store it.
        qkv = nn.Dense(3 * dim, kernel_init=XAVIER_OF_THREE, name="qkv")
        q = jnp.broadcast_to(qkv(query)[None, :, :dim], (n, 1, dim))
        k, v = jnp.split(qkv(x)[..., dim:], 2, axis=-1)
        q, k, v = (y.reshape(n, -1, self.heads, dim // self.heads) for y in (q, k, v))
        y = nn.Dense(dim, kernel_init=XAVIER, name="attention_out")(attend(q, k, v).reshape(n, dim))
        width = self.mlp_dim or 4 * dim
        return y + mlp(layer_norm(y, self.epsilon), width, self.activation, XAVIER, XAVIER)


class ViT(nn.Module):
    """Vision transformer (ViT): class token and patch embeddings, then transformer blocks.

    See `net` for the attributes.
    """

    dim: int
    layers: int
    num_heads: int
    patch_size: int
    drop_path: float = 0.0
    frozen_patches: bool = True
    pool: str = "token"
    positions: str = "fixed"
    remat: bool = False
    class_token: bool = True
    registers: int = 0
    pre_norm: bool = False
    layer_scale: bool = False
    activation: str = "gelu"
    mlp_dim: int | None = None
    epsilon: float = 1e-6
    projection: int = 0
    distilled: bool = False

    @property
    def num_class_tokens(self) -> int:
        """Return the number of class and distillation tokens, before registers and patches."""
        return int(self.class_token) + int(self.distilled)

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Map images [n, h, w, c] to features [n, dim]. ``keys`` [n] drive stochastic depth.

        ``axis_name`` is not used.

        Raises:
            ValueError: if a side of the images is not a multiple of the patch size, or if the grid
                of patches does not fit the learned positions.
        """
        n, h, w, _ = x.shape
        p = self.patch_size
        if h % p or w % p:
            raise ValueError(
                f"the sides of images must be multiples of net.patch_size={p}, got {h} x {w}"
            )
        name = "frozen_patches" if self.frozen_patches else "patches"
        x = Patches(self.dim, p, self.frozen_patches, name=name)(x)
        if self.positions == "fixed":
            x = x + jnp.asarray(sine_positions(h // p, w // p, self.dim), x.dtype)[None]
        tokens = self.num_class_tokens
        if self.distilled:
            x = self._prepend_token("distillation", x)
        if self.class_token:
            x = self._prepend_token("token", x)
        if self.positions == "learned":
            init = nn.initializers.normal(0.02)
            x = x + learned_positions(self, h // p, w // p, self.dim, init, tokens)[None]
        if self.registers:
            shape = (self.registers, self.dim)
            registers = self.param("registers", nn.initializers.normal(1e-6), shape)
            registers = jnp.broadcast_to(registers[None], (n, *shape))
            x = jnp.concatenate([x[:, :tokens], registers, x[:, tokens:]], axis=1)
        if self.pre_norm:
            x = layer_norm(x, self.epsilon, name="pre_norm")
        rotation = None
        if self.positions == "rotary":
            rotation = jnp.asarray(rotary_angles(h // p, w // p, self.dim // self.num_heads))
        scales = [None] * self.layers
        if train and keys is not None and self.drop_path > 0:
            factors = depth_scales(keys, layers=self.layers, drop_path=self.drop_path)
            scales = jnp.moveaxis(factors.astype(x.dtype), 1, 0)
        # To rematerialise the class would rename the parameters, so the call is rematerialised.
        run = nn.remat(Block.__call__) if self.remat else Block.__call__
        for scale in scales:
            block = Block(
                self.num_heads,
                Inits(XAVIER_OF_THREE, XAVIER, XAVIER),
                mlp_dim=self.mlp_dim,
                activation=self.activation,
                layer_scale=self.layer_scale,
                epsilon=self.epsilon,
            )
            x = run(block, x, scale, rotation)
        x = layer_norm(x, self.epsilon)
        if self.pool == "attention":
            settings = (self.num_heads, self.mlp_dim, self.activation, self.epsilon)
            x = AttentionPool(*settings, name="pool")(x)
        elif self.pool == "mean":
            x = jnp.mean(x[:, tokens + self.registers :], axis=1)
        else:
            x = x[:, 0] if tokens == 1 else jnp.mean(x[:, :tokens], axis=1)
        if self.projection:
            x = nn.Dense(self.projection, use_bias=False, kernel_init=XAVIER, name="projection")(x)
        return x

    def _prepend_token(self, name: str, x: Array) -> Array:
        """Put a learned token before tokens [n, t, dim]."""
        token = self.param(name, nn.initializers.normal(1e-6), (self.dim,))
        return jnp.concatenate(
            [jnp.broadcast_to(token[None, None], (x.shape[0], 1, self.dim)), x], axis=1
        )


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
    class_token: bool = True,
    registers: int = 0,
    pre_norm: bool = False,
    layer_scale: bool = False,
    activation: str = "gelu",
    mlp_dim: int | None = None,
    epsilon: float = 1e-6,
    projection: int = 0,
    distilled: bool = False,
) -> nn.Module:
    """Build a vision transformer for images whose sides are multiples of the patch size.

    Args:
        size: "tiny" (192 features), "small" (384) or "base" (768), each with 12 layers.
        patch_size: side of a patch in pixels, >= 1.
        drop_path: rate of stochastic depth in the last layer, in [0, 1); see `depth_scales`.
        frozen_patches: whether the patch projection keeps its random initial value, which
            stabilises training (MoCo-v3).
        pool: features after the last norm: "token", the class token, "mean", the mean over the
            patches, or "attention", attention pooling with a learned query (SigLIP).
        num_heads: number of attention heads, >= 1. Default: 3 for tiny, 12 for small (DeiT's has
            6), 12 for base.
        dim: dimension of tokens and features, a multiple of 4 and of ``num_heads``. Default: given
            by ``size``.
        layers: number of blocks, >= 1. Default: 12.
        positions: "fixed" sines and cosines, for images of any size, "learned", for square
            images of the size that the network is initialised with (DeiT, DINO), or "rotary",
            rotations of queries and keys, for images of any size (DINOv3).
        remat: whether to store only the input of each block and recompute the block in the backward
            pass. This adds about a quarter to the operations of a step, and saves the activations
            of all blocks but one (docs/scaling.md). XLA's CPU compiler undoes it.
        class_token: whether there is a class token (SigLIP has none).
        registers: number of register tokens, >= 0 (Darcet et al., Vision Transformers Need
            Registers, 2024).
        pre_norm: whether a LayerNorm precedes the blocks (CLIP).
        layer_scale: whether a learned vector scales every branch (DINOv2).
        activation: activation of the MLPs: "gelu", "gelu_tanh" (SigLIP), "quick_gelu" (CLIP) or
            "swiglu", silu(a) * b for two linear layers a and b (DINOv2's largest network).
        mlp_dim: hidden width of the MLPs, >= 1. Default: 4 ``dim``.
        epsilon: added to the variance in every LayerNorm, > 0.
        projection: dimension of features behind a linear projection without bias (CLIP), >= 0; 0
            for none.
        distilled: whether a distillation token follows the class token (DeiT). Features of the
            pooling "token" are then the mean of both tokens.

    Raises:
        ValueError: if a setting is out of range.
    """
    require_choice(SIZES, size=size)
    require_choice(POOLS, pool=pool)
    require_choice(POSITIONS, positions=positions)
    require_choice((*ACTIVATIONS, "swiglu"), activation=activation)
    require_min(0, registers=registers, projection=projection)
    if not 0 <= drop_path < 1:
        raise ValueError(f"net.drop_path must be in [0, 1), got {drop_path}")
    default_dim, default_layers, default_heads = SIZES[size]
    dim = default_dim if dim is None else dim
    layers = default_layers if layers is None else layers
    num_heads = default_heads if num_heads is None else num_heads
    require_min(1, patch_size=patch_size, layers=layers, num_heads=num_heads)
    if mlp_dim is not None:
        require_min(1, mlp_dim=mlp_dim)
    if not epsilon > 0:
        raise ValueError(f"net.epsilon must be > 0, got {epsilon}")
    if pool == "token" and not class_token:
        raise ValueError("net.pool must be mean or attention without a class token, got 'token'")
    if distilled and not class_token:
        raise ValueError("net.distilled needs a class token, got net.class_token=False")
    if dim < 4 or dim % 4 or dim % num_heads:
        raise ValueError(
            f"net.dim must be a multiple of 4 and of net.num_heads={num_heads}, got {dim}"
        )
    if positions == "rotary" and dim // num_heads % 4:
        raise ValueError(
            "net.dim / net.num_heads must be a multiple of 4 for rotary positions, got "
            f"{dim // num_heads}"
        )
    return ViT(
        dim=dim,
        layers=layers,
        num_heads=num_heads,
        patch_size=patch_size,
        drop_path=drop_path,
        frozen_patches=frozen_patches,
        pool=pool,
        positions=positions,
        remat=remat,
        class_token=class_token,
        registers=registers,
        pre_norm=pre_norm,
        layer_scale=layer_scale,
        activation=activation,
        mlp_dim=mlp_dim,
        epsilon=epsilon,
        projection=projection,
        distilled=distilled,
    )


def sine_positions(rows: int, columns: int, dim: int) -> np.ndarray:
    r"""Return fixed position embeddings: sines and cosines of each patch's row and column.

    .. math:: (\sin r\omega_k, \cos r\omega_k, \sin c\omega_k, \cos c\omega_k),
        \quad \omega_k = 10000^{-4k/d}, \quad k = 0 \dots d/4 - 1

    Args:
        rows: rows of the patch grid.
        columns: columns of the patch grid.
        dim: d, a multiple of 4.

    Returns:
        [rows * columns, dim] float32, in row-major order.

    References:
        Chen, Xie and He, 2021. The order of the four parts matches the released code.
    """
    omega = 10000.0 ** (-np.arange(dim // 4) / (dim // 4))
    row, column = np.mgrid[:rows, :columns].reshape(2, -1, 1) * omega
    parts = [np.sin(row), np.cos(row), np.sin(column), np.cos(column)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def rotary_angles(rows: int, columns: int, dim: int) -> np.ndarray:
    r"""Return the angles by which rotary positions rotate the queries and keys of each patch.

    .. math:: (2\pi y\omega_k, 2\pi x\omega_k), \quad \omega_k = 100^{-4k/d},
        \quad k = 0 \dots d/4 - 1

    Args:
        rows: rows of the patch grid.
        columns: columns of the patch grid.
        dim: d, channels of a head, a multiple of 4.

    Returns:
        [rows * columns, d / 2] float32, in row-major order. (y, x) is the centre of a patch, in
        [-1, 1].

    References:
        Simeoni et al., DINOv3, 2025.
    """
    omega = 2 * np.pi * 100.0 ** (-np.arange(dim // 4) / (dim // 4))
    y, x = ((2 * np.arange(count) + 1) / count - 1 for count in (rows, columns))
    centres = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    return (centres * omega).reshape(rows * columns, -1).astype(np.float32)


def depth_scales(keys: Array, *, layers: int, drop_path: float) -> Array:
    r"""Draw the stochastic-depth factors of the attention and MLP branches of all layers.

    The factor of layer l = 0 .. L - 1 is 0 with probability r_l = drop_path l / (L - 1), else
    1 / (1 - r_l), so that its mean is 1. Branches, layers and images are independent.

    Args:
        keys: typed random keys [n], one per image.
        layers: L, >= 1. A single layer is never dropped.
        drop_path: rate of the last layer, in [0, 1).

    Returns:
        [n, layers, 2] float32: factors of the attention and the MLP branch.

    References:
        Huang et al., Deep Networks with Stochastic Depth, 2016.
    """
    keep = jnp.asarray(1 - np.linspace(0, drop_path, layers), jnp.float32)[None, :, None]
    u = jax.vmap(lambda key: jax.random.uniform(key, (layers, 2), jnp.float32))(keys)
    return jnp.where(u < keep, 1 / keep, 0)
