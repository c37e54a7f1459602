"""Mixup and CutMix of a labelled batch, for supervised training."""

import jax
from jax import Array
from jax import numpy as jnp

Labelled = tuple[Array, Array]  # images and targets


def mix(key: Array, batch: Labelled, others: Labelled, *, mixup: float, cutmix: float) -> Labelled:
    r"""Mix each labelled example of a batch with another one by Mixup or CutMix.

    .. math:: \lambda \sim \text{Beta}(\alpha, \alpha), \quad t_i \leftarrow \lambda t_i +
        (1 - \lambda) t'_i

    Mixup mixes the images in the same way. CutMix pastes a box of the other image, with a fraction
    1 - lambda of the area, into the image. If the border cuts the box, lambda is recomputed from
    the remaining area. All examples share one lambda and one box, as in timm.

    Args:
        key: random key. Devices that share a batch must pass the same key.
        batch: images [b, h, w, c] and targets [b, classes] whose rows sum to 1.
        others: images and targets to mix with, of the same shapes.
        mixup: alpha of Mixup, >= 0; 0 disables it.
        cutmix: alpha of CutMix, >= 0; 0 disables it. One of the two must be positive. If both are,
            each is chosen with probability 1/2.

    Returns:
        Mixed images [b, h, w, c] and targets [b, classes].

    Raises:
        ValueError: if an alpha is negative or both are 0.

    References:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018.
        Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers, 2019, eq. 1 and 2.
    """
    if not (mixup >= 0 and cutmix >= 0 and mixup + cutmix > 0):  # NaN is refused too.
        raise ValueError(f"mixup and cutmix must be >= 0, and one > 0, got {mixup} and {cutmix}")
    (images, targets), (other_images, other_targets) = batch, others
    choice_key, lambda_key, box_key = jax.random.split(key, 3)
    h, w = images.shape[1:3]
    cutmix_probability = 0.5 if mixup and cutmix else float(cutmix > 0)
    use_cutmix = jax.random.bernoulli(choice_key, jnp.float32(cutmix_probability))
    alpha = jnp.where(use_cutmix, jnp.float32(cutmix), jnp.float32(mixup))
    lam = jax.random.beta(lambda_key, alpha, alpha, dtype=jnp.float32)
    sides = jnp.array([h, w], jnp.float32)
    half = jnp.floor(sides * jnp.sqrt(1 - lam) / 2)
    centre = jnp.floor(sides * jax.random.uniform(box_key, (2,), jnp.float32))
    low, high = jnp.maximum(centre - half, 0), jnp.minimum(centre + half, sides)
    inside = _within(h, low[0], high[0])[:, None] & _within(w, low[1], high[1])[None, :]
    # The weight of a pixel is 0 inside CutMix's box and 1 outside, and lambda with Mixup.
    weight = jnp.where(use_cutmix, (~inside).astype(jnp.float32), lam)[None, :, :, None]
    lam = jnp.where(use_cutmix, 1 - jnp.prod(high - low) / (h * w), lam)
    mixed = weight * images + (1 - weight) * other_images
    return mixed, lam * targets + (1 - lam) * other_targets


def _within(n: int, low: Array, high: Array) -> Array:
    """Return a bool vector [n], True for indices in [low, high)."""
    index = jnp.arange(n, dtype=jnp.float32)
    return (index >= low) & (index < high)
