"""Mixup and CutMix of the examples of a batch, for training with labels."""

import jax
from jax import Array
from jax import numpy as jnp


def mix(
    key: Array,
    batch: tuple[Array, Array],
    others: tuple[Array, Array],
    *,
    mixup: float,
    cutmix: float,
) -> tuple[Array, Array]:
    r"""Mixup or CutMix of each example with another one.

    .. math:: \lambda \sim \text{Beta}(\alpha, \alpha), \quad t_i \leftarrow \lambda t_i +
        (1 - \lambda) t'_i

    Mixup does the same to the images. CutMix puts a box of the other image, of a share 1 - lambda
    of the area, into the image; where the border cuts it, lambda becomes what is left. All examples
    have one lambda and one box, as in timm.

    Args:
        key: the same wherever parts of one batch are mixed.
        batch: images [b, h, w, c] and targets [b, classes], whose rows sum to 1.
        others: likewise, what each is mixed with.
        mixup: alpha >= 0; 0 is none.
        cutmix: likewise, not both 0; if both are positive each is taken half of the time.

    References:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018;
        Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers, 2019, eq. 1 and 2.
    """
    (images, targets), (other_images, other_targets) = batch, others
    which, draw, place = jax.random.split(key, 3)
    h, w = images.shape[1:3]
    cut = jax.random.bernoulli(which, 0.5 if mixup and cutmix else float(cutmix > 0))
    alpha = jnp.where(cut, jnp.float32(cutmix), jnp.float32(mixup))
    share = jax.random.beta(draw, alpha, alpha)
    sides = jnp.array([h, w], jnp.float32)
    half = jnp.floor(sides * jnp.sqrt(1 - share) / 2)
    centre = jnp.floor(sides * jax.random.uniform(place, (2,)))
    low, high = jnp.maximum(centre - half, 0), jnp.minimum(centre + half, sides)
    inside = _within(h, low[0], high[0])[:, None] & _within(w, low[1], high[1])[None, :]
    left = jnp.where(cut, 1 - jnp.prod(high - low) / (h * w), share)
    keep = jnp.where(cut, (~inside).astype(jnp.float32), share)[None, :, :, None]
    mixed = keep * images + (1 - keep) * other_images
    return mixed, left * targets + (1 - left) * other_targets


def _within(n: int, low: Array, high: Array) -> Array:
    at = jnp.arange(n, dtype=jnp.float32)
    return (at >= low) & (at < high)
