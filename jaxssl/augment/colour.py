"""Colours of one planar image [c, h, w], float in [0, 1]; `jax.vmap` makes batches of it.

Planes make whole rows of a channel lie together, which is several times faster on a CPU. Grey is
the weighted mean of three channels and the plain mean of any other number. As in `image`, a random
operation takes uniform numbers ``u`` in [0, 1).
"""

import itertools

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment.image import between, choose

GREY_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green, blue; ITU-R 601
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # in the order of `jitter`
ORDERS = tuple(itertools.permutations(range(4)))


def grey(image: Array) -> Array:
    """[1, h, w] luminance."""
    if image.shape[0] != 3:
        return jnp.mean(image, axis=0, keepdims=True)
    r, g, b = image
    return (GREY_WEIGHTS[0] * r + GREY_WEIGHTS[1] * g + GREY_WEIGHTS[2] * b)[None]


def mean(image: Array) -> Array:
    """[] mean of an image; a product with ones, which is faster than a sum on a CPU."""
    ones = jnp.full(image.size, 1 / image.size, image.dtype)
    return jnp.dot(image.reshape(-1), ones, precision=jax.lax.Precision.HIGHEST)


def blend(image: Array, other: Array, factor: Array) -> Array:
    """From ``other`` (factor 0) to the image (1) and beyond, clipped to [0, 1]."""
    # In this form a factor of 1 changes nothing, to the bit.
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def brightness(image: Array, factor: Array) -> Array:
    """Multiply by ``factor``, clipped to [0, 1]."""
    return jnp.clip(image * factor, 0, 1)


def contrast(image: Array, factor: Array) -> Array:
    """Multiply the distance from the mean of the grey image by ``factor``, clipped to [0, 1]."""
    return blend(image, mean(grey(image)), factor)


def saturation(image: Array, factor: Array) -> Array:
    """Multiply the distance from the grey image by ``factor``, clipped to [0, 1]."""
    return blend(image, grey(image), factor)


def grayscale(image: Array) -> Array:
    """The grey image in every channel."""
    return jnp.broadcast_to(grey(image), image.shape)


def random_grayscale(u: Array, image: Array, probability: float) -> Array:
    """`grayscale` with ``probability``; ``u`` [] is uniform in [0, 1)."""
    return jnp.where(u < probability, grayscale(image), image)


def hue(image: Array, shift: Array) -> Array:
    """Turn the hue in HSV; value and saturation stay.

    Args:
        image: [c, h, w]; without three channels there is no hue and nothing changes.
        shift: of the circle, in [-0.5, 0.5]; 0 changes nothing, to the bit.
    """
    if image.shape[0] != 3:
        return image
    r, g, b = image
    high = jnp.maximum(jnp.maximum(r, g), b)
    chroma = high - jnp.minimum(jnp.minimum(r, g), b)
    some = jnp.where(chroma > 0, chroma, 1)
    # In sixths of the circle, counted from red.
    of_green = jnp.where(high == g, 2 + (b - r) / some, 4 + (r - g) / some)
    angle = jnp.where(high == r, (g - b) / some, of_green) + 6 * shift
    k = angle[None] + jnp.array([5.0, 3.0, 1.0])[:, None, None]
    k = k - 6 * jnp.floor(k / 6)
    turned = high[None] - chroma[None] * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
    return jnp.where(shift == 0, image, turned)


def jitter(image: Array, order: Array, factors: Array, shift: Array) -> Array:
    """Brightness, contrast, saturation and hue, one after the other.

    Args:
        image: [c, h, w].
        order: [4] a permutation: 0 brightness, 1 contrast, 2 saturation, 3 hue.
        factors: [3] of brightness, contrast, saturation, >= 0; 1 changes nothing.
        shift: of the hue, in [-0.5, 0.5]; 0 changes nothing.
    """
    place = jnp.argmax(order == HUE)
    i = jnp.arange(3)
    operations = order[i + (i >= place).astype(jnp.int32)]
    factors = factors[operations]

    # Each image has its own order, so every slot holds every operation. Hue costs most: here it
    # stands once, between three slots before and three after, of which three are idle.
    def slot(image: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        operation, factor = given
        light = grey(image)
        other = jnp.where(operation == CONTRAST, mean(light), light)
        other = jnp.where(operation == BRIGHTNESS, 0, other)
        return blend(image, other, factor), None

    # Loops, since XLA would fuse the slots and compute the earlier ones again for each later one.
    image, _ = jax.lax.scan(slot, image, (operations, jnp.where(i < place, factors, 1)))
    image = hue(image, shift)
    return jax.lax.scan(slot, image, (operations, jnp.where(i < place, 1, factors)))[0]


def random_jitter(
    u: Array,
    image: Array,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    probability: float = 1.0,
) -> Array:
    """Colour jitter in a random order, as torchvision's ``ColorJitter``.

    Args:
        u: [6] uniform in [0, 1): whether, order, brightness, contrast, saturation, hue.
        image: [c, h, w].
        brightness: the factor is uniform in [1 - brightness, 1 + brightness], at least 0.
        contrast: likewise.
        saturation: likewise.
        hue: the shift is uniform in [-hue, hue], hue in [0, 0.5].
        probability: of any change.
    """
    strengths = jnp.array([brightness, contrast, saturation], jnp.float32)
    yes = u[0] < probability
    order = jnp.array(ORDERS, jnp.int32)[choose(u[1], len(ORDERS))]
    factors = between(u[2:5], jnp.maximum(1 - strengths, 0), 1 + strengths)
    return jitter(
        image, order, jnp.where(yes, factors, 1), jnp.where(yes, between(u[5], -hue, hue), 0)
    )


def random_brightness_contrast(u: Array, image: Array, strength: float) -> Array:
    """`brightness`, then `contrast`, each with a factor in [1 - strength, 1 + strength].

    Args:
        u: [2] uniform in [0, 1): brightness, contrast.
        image: [c, h, w].
        strength: in [0, 1].
    """
    factors = between(u, 1 - strength, 1 + strength)
    return contrast(brightness(image, factors[0]), factors[1])


def blur(image: Array, kernel: int, sigma: Array) -> Array:
    """Gaussian blur; outside the image is its reflection, as in torchvision.

    Args:
        image: [c, h, w].
        kernel: taps along a side, odd, static; half of them must be fewer than the image's sides.
        sigma: standard deviation in pixels, > 0.

    Raises:
        ValueError: on an even or too large kernel.
    """
    _, h, w = image.shape
    if kernel < 1 or kernel % 2 == 0 or kernel // 2 >= min(h, w):
        raise ValueError(f"blur kernel is {kernel}; expected odd and below twice {min(h, w)}")
    rows, columns = _blur_weights(h, kernel, sigma), _blur_weights(w, kernel, sigma)
    blurred = jnp.einsum(
        "yh,chw,xw->cyx", rows, image, columns, precision=jax.lax.Precision.HIGHEST
    )
    return jnp.clip(blurred, 0, 1)  # the weights' sum is rounded


def random_blur(
    u: Array, image: Array, kernel: int, sigma: tuple[float, float], probability: float
) -> Array:
    """`blur` with ``probability`` and a sigma uniform in its range.

    Args:
        u: [2] uniform in [0, 1): whether, sigma.
        image: [c, h, w].
        kernel: taps along a side, odd.
        sigma: smallest and largest standard deviation in pixels.
        probability: of blurring.
    """
    return jnp.where(u[0] < probability, blur(image, kernel, between(u[1], *sigma)), image)


def invert(image: Array) -> Array:
    """1 - image."""
    return 1 - image


def solarize(image: Array, threshold: Array | float = 0.5) -> Array:
    """Invert the values of at least ``threshold``; Pillow's 128 is 0.5."""
    return jnp.where(image >= threshold, 1 - image, image)


def random_solarize(u: Array, image: Array, probability: float) -> Array:
    """`solarize` at 0.5 with ``probability``; ``u`` [] is uniform in [0, 1)."""
    return jnp.where(u < probability, solarize(image), image)


def posterize(image: Array, bits: Array | int) -> Array:
    """Keep the upper ``bits`` (0 to 8, int32) of each value's eight."""
    dropped = 8 - bits
    kept = jnp.left_shift(jnp.right_shift(_levels(image), dropped), dropped)
    return kept.astype(jnp.float32) / 255


def autocontrast(image: Array) -> Array:
    """Stretch each channel to [0, 1]; a channel of one value stays."""
    low = jnp.min(image, axis=(1, 2), keepdims=True)
    high = jnp.max(image, axis=(1, 2), keepdims=True)
    span = high - low
    return jnp.where(span > 0, (image - low) / jnp.where(span > 0, span, 1), image)


def equalize(image: Array) -> Array:
    """Flatten each channel's histogram of 256 levels, as Pillow's ``ImageOps.equalize``.

    Values are rounded to 256 levels. A channel of fewer than 255 pixels besides those of its
    brightest level stays.
    """
    c, h, w = image.shape
    place = _levels(image).reshape(c, h * w) + 256 * jnp.arange(c)[:, None]
    counts = jnp.zeros(c * 256, jnp.int32).at[place.reshape(-1)].add(1, mode="promise_in_bounds")
    counts = counts.reshape(c, 256).astype(jnp.float32)
    # Pixels darker than each level: a product, faster than a cumulative sum and exact to 2^24.
    darker = jnp.triu(jnp.ones((256, 256)), 1)
    below = jnp.dot(counts, darker, precision=jax.lax.Precision.HIGHEST)
    step = jnp.floor(jnp.max(jnp.where(counts > 0, below, 0), axis=1, keepdims=True) / 255)
    at_pixel = below.reshape(-1).at[place].get(mode="promise_in_bounds")
    # The half keeps a quotient of integers away from the next integer.
    level = jnp.floor((at_pixel + jnp.floor(step / 2) + 0.5) / jnp.maximum(step, 1))
    mapped = (jnp.minimum(level, 255) / 255).reshape(image.shape)
    return jnp.where(step[:, :, None] > 0, mapped, image)


def smooth(image: Array) -> Array:
    """Pillow's ``ImageFilter.SMOOTH``: 3 x 3 mean, the centre five times; the border stays."""
    _, h, w = image.shape
    # Products with constant matrices: XLA would compute shifted sums again at each of their uses.
    box = jnp.einsum(
        "yh,chw,xw->cyx", _near(h), image, _near(w), precision=jax.lax.Precision.HIGHEST
    )
    inner = _inner(h)[:, None] & _inner(w)[None, :]
    return jnp.where(inner[None], (box + 4 * image) / 13, image)


def sharpness(image: Array, factor: Array) -> Array:
    """Multiply the distance from the `smooth` image by ``factor``, clipped to [0, 1]."""
    return blend(image, smooth(image), factor)


def _levels(image: Array) -> Array:
    """The nearest of the 256 levels, int32."""
    return jnp.round(image * 255).astype(jnp.int32)


def _near(n: int) -> Array:
    """[n, n] ones where two places are at most one apart."""
    return (jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n)[None, :]) <= 1).astype(jnp.float32)


def _inner(n: int) -> Array:
    """[n] true but for the first and the last."""
    return (jnp.arange(n) > 0) & (jnp.arange(n) < n - 1)


def _blur_weights(n: int, kernel: int, sigma: Array) -> Array:
    """[n, n] weights of the input pixels in each output pixel; rows sum to 1."""
    i, j = jnp.arange(n)[:, None], jnp.arange(n)[None, :]

    def tap(distance: Array, exists: Array | bool = True) -> Array:
        weight = jnp.exp(-0.5 * (distance.astype(jnp.float32) / sigma) ** 2)
        return jnp.where(exists & (jnp.abs(distance) <= kernel // 2), weight, 0)

    # A pixel, and its images mirrored at the first and at the last pixel (which have none).
    weights = tap(i - j) + tap(i + j, j > 0) + tap(2 * (n - 1) - i - j, j < n - 1)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
