"""ConvNeXt: a convolutional network with the design of a transformer.

References:
    Liu et al., A ConvNet for the 2020s, 2022.
    Woo et al., ConvNeXt V2, 2023.
"""

from functools import partial

import flax.linen as nn
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import layer_norm, require_min
from jaxssl.models._transformer import mlp

INIT = nn.initializers.normal(0.02)
_conv = partial(nn.Conv, kernel_init=INIT, padding="VALID")


class Block(nn.Module):
    """Depthwise 7 x 7 convolution, LayerNorm and an MLP on the channels, with a shortcut.

    Attributes:
        response_norm: whether `ResponseNorm` follows the MLP's activation (ConvNeXt V2). Otherwise
            a learned vector scales the result of the MLP.
        epsilon: added to the variance in the LayerNorm.
    """

    response_norm: bool = False
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Apply the block to feature maps [n, h, w, c], with an unchanged shape."""
        c = x.shape[-1]
        y = _conv(c, (7, 7), padding=3, feature_group_count=c)(x)
        norm = ResponseNorm(name="response_norm") if self.response_norm else None
        y = mlp(layer_norm(y, self.epsilon), 4 * c, "gelu", INIT, INIT, norm)
        if self.response_norm:
            return x + y
        scale = self.param("scale", nn.initializers.constant(1e-6), (c,))
        return x + y * scale[None, None, None]


class ResponseNorm(nn.Module):
    """Divide the norm of every channel over the image by the mean norm of all channels (GRN)."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map x [n, h, w, c] to x + scale * x * |x_c| / mean_c |x_c| + bias.

        |x_c| is the L2 norm of channel c over the rows and columns of an image.
        """
        scale = self.param("scale", nn.initializers.zeros, x.shape[-1:])[None, None, None]
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])[None, None, None]
        # The added 1e-12 keeps the gradient finite where a channel is zero.
        squares = jnp.sum(x.astype(jnp.float32) ** 2, axis=(1, 2), keepdims=True)
        norms = jnp.sqrt(squares + 1e-12)
        ratio = norms / (jnp.mean(norms, axis=-1, keepdims=True) + 1e-6)
        return x + scale * (x * ratio.astype(x.dtype)) + bias


class ConvNeXt(nn.Module):
    """ConvNeXt network (Liu et al., 2022).

    See `net` for the attributes.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    remat: bool = False
    response_norm: bool = False
    epsilon: float = 1e-6

    @nn.compact
    def __call__(
        self, x: Array, *, train: bool, axis_name: str | None = None, keys: Array | None = None
    ) -> Array:
        """Map images [n, h, w, c] to features [n, f]. The other arguments have no effect.

        Raises:
            ValueError: if the images are too small.
        """
        smallest = 2 ** (len(self.depths) + 1)
        if min(x.shape[1:3]) < smallest:
            raise ValueError(
                f"net.name='convnext' needs images of >= {smallest} pixels a side, got "
                f"{x.shape[1]} x {x.shape[2]}"
            )
        # To rematerialise the class would rename the parameters, so the call is rematerialised.
        run = nn.remat(Block.__call__) if self.remat else Block.__call__
        for stage, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True)):
            if stage == 0:
                x = layer_norm(_conv(width, (4, 4), 4)(x), self.epsilon)
            else:
                x = _conv(width, (2, 2), 2)(layer_norm(x, self.epsilon))
            for _ in range(depth):
                x = run(Block(self.response_norm, self.epsilon), x)
        return layer_norm(jnp.mean(x, axis=(1, 2)), self.epsilon, name="norm")


def net(
    *,
    depths: tuple[int, ...] = (3, 3, 9, 3),
    widths: tuple[int, ...] = (96, 192, 384, 768),
    remat: bool = False,
    response_norm: bool = False,
    epsilon: float = 1e-6,
) -> nn.Module:
    """Build a ConvNeXt, by default ConvNeXt-T, whose images have at least 32 pixels a side.

    Args:
        depths: number of blocks of each stage, >= 1. There is at least one stage.
        widths: channels of each stage, >= 1. The last one is the feature dimension.
        remat: whether to store only the input of each block and recompute the block in the backward
            pass.
        response_norm: whether blocks have global response normalisation instead of a learned
            scale (ConvNeXt V2).
        epsilon: added to the variance in every LayerNorm, > 0.

    Raises:
        ValueError: if a setting is out of range, or ``depths`` and ``widths`` differ in length.

    References:
        Liu et al., 2022. Stochastic depth is left out.
    """
    if len(depths) != len(widths):
        raise ValueError(f"net.depths {depths} and net.widths {widths} must have equal lengths")
    require_min(1, depths=min(depths, default=0), widths=min(widths, default=0))
    if not epsilon > 0:
        raise ValueError(f"net.epsilon must be > 0, got {epsilon}")
    return ConvNeXt(tuple(depths), tuple(widths), remat, response_norm, epsilon)
