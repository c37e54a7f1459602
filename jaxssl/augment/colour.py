"""Colour operations on one planar image [c, h, w] with float values in [0, 1].

The planar layout keeps the rows of a channel contiguous, which is several times faster on CPUs. The
grey image is the luminance of three channels, or the mean of any other number of channels. As in
`image`, a random operation takes uniform numbers ``u`` in [0, 1).
"""

import itertools
from collections.abc import Sequence

import jax
from jax import Array
from jax import numpy as jnp
from jax.typing import ArrayLike

from jaxssl.augment.image import between, choose

GREY_WEIGHTS = (0.299, 0.587, 0.114)  # luminance weights of red, green and blue (ITU-R BT.601)
RGB = 3  # number of channels that the operations on colours need
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # indices of the four operations of `jitter`
ORDERS = tuple(itertools.permutations(range(4)))


def grey(image: Array) -> Array:
    """Return the luminance [1, h, w] of an image [c, h, w]."""
    if image.shape[0] != RGB:
        return jnp.mean(image, axis=0, keepdims=True)
    r, g, b = image
    return (GREY_WEIGHTS[0] * r + GREY_WEIGHTS[1] * g + GREY_WEIGHTS[2] * b)[None]


def mean(image: Array) -> Array:
    """Return the mean [] of an image over all channels and pixels."""
    # On CPUs XLA computes a product with a constant vector faster than a sum.
    ones = jnp.full(image.size, 1 / image.size, image.dtype)
    return jnp.dot(image.reshape(-1), ones, precision=jax.lax.Precision.HIGHEST)


def blend(image: Array, other: Array, factor: ArrayLike) -> Array:
    """Interpolate from one image (factor 0) to another (factor 1) or beyond, and clip to [0, 1]."""
    # With a factor of 1, this formula returns ``image`` exactly.
    return jnp.clip(factor * image + (1 - factor) * other, 0, 1)


def brightness(image: Array, factor: ArrayLike) -> Array:
    """Multiply an image by ``factor``, then clip it to [0, 1]."""
    return jnp.clip(image * factor, 0, 1)


def contrast(image: Array, factor: ArrayLike) -> Array:
    """Scale an image's difference from its mean luminance by ``factor``, then clip it to [0, 1]."""
    return blend(image, mean(grey(image)), factor)


def grayscale(image: Array) -> Array:
    """Replace every channel of an image by its luminance."""
    return jnp.broadcast_to(grey(image), image.shape)


def random_grayscale(u: Array, image: Array, probability: float) -> Array:
    """Turn an RGB image grey with ``probability``. ``u`` [] is uniform in [0, 1).

    Images of other numbers of channels are returned unchanged.
    """
    if image.shape[0] != RGB:
        return image
    return jnp.where(u < probability, grayscale(image), image)


def hue(image: Array, shift: ArrayLike) -> Array:
    """Shift the hue of an image in HSV, and keep saturation and value.

    Args:
        image: [c, h, w]. Unless c = 3, it is returned unchanged.
        shift: shift as a fraction of the colour circle, in [-0.5, 0.5]. With 0, the image is
            returned exactly.
    """
    if image.shape[0] != RGB:
        return image
    r, g, b = image
    high = jnp.maximum(jnp.maximum(r, g), b)
    chroma = high - jnp.minimum(jnp.minimum(r, g), b)
    divisor = jnp.where(chroma > 0, chroma, 1)
    # The hue is computed in sixths of the colour circle, starting at red.
    green_or_blue = jnp.where(high == g, 2 + (b - r) / divisor, 4 + (r - g) / divisor)
    angle = jnp.where(high == r, (g - b) / divisor, green_or_blue) + 6 * shift
    k = angle[None] + jnp.array([5.0, 3.0, 1.0], jnp.float32)[:, None, None]
    k = k - 6 * jnp.floor(k / 6)
    shifted = high[None] - chroma[None] * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)
    return jnp.where(shift == 0, image, shifted)


def jitter(image: Array, order: Array, factors: Array, shift: Array) -> Array:
    """Change brightness, contrast, saturation and hue of an image in the order ``order``.

    Args:
        image: [c, h, w].
        order: [4] a permutation of 0 (brightness), 1 (contrast), 2 (saturation), 3 (hue).
        factors: [3] factors of brightness, contrast and saturation, >= 0. 1 is the identity.
        shift: shift of the hue, in [-0.5, 0.5]. 0 is the identity.
    """
    hue_index = jnp.argmax(order == HUE)
    i = jnp.arange(3)
    operations = order[i + (i >= hue_index).astype(jnp.int32)]
    factors = factors[operations]

    # Under vmap each image has its own order of operations, so every step computes all of them. Hue
    # is the most expensive operation and runs only once. Three steps come before it and three after
    # it. Three of these six steps have a factor of 1, which is the identity.
    def step(image: Array, settings: tuple[Array, Array]) -> tuple[Array, None]:
        operation, factor = settings
        light = grey(image)
        other = jnp.where(operation == CONTRAST, mean(light), light)
        other = jnp.where(operation == BRIGHTNESS, 0, other)
        return blend(image, other, factor), None

    # The steps run in a scan, because XLA would fuse unrolled steps and recompute earlier ones.
    image, _ = jax.lax.scan(step, image, (operations, jnp.where(i < hue_index, factors, 1)))
    image = hue(image, shift)
    return jax.lax.scan(step, image, (operations, jnp.where(i < hue_index, 1, factors)))[0]


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
    """Jitter the colours in random order with random strengths, as torchvision's ``ColorJitter``.

    Saturation and hue are left out unless the image is RGB.

    Args:
        u: [6] uniform in [0, 1): whether to change the image, order, brightness, contrast,
            saturation, hue.
        image: [c, h, w].
        brightness: the factor is uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: range of the factor, as for brightness.
        saturation: range of the factor, as for brightness.
        hue: largest shift, in [0, 0.5]. The shift is uniform in [-hue, hue].
        probability: probability of changing the image.
    """
    saturation = saturation if image.shape[0] == RGB else 0.0
    strengths = jnp.array([brightness, contrast, saturation], jnp.float32)
    changed = u[0] < probability
    order = jnp.array(ORDERS, jnp.int32)[choose(u[1], len(ORDERS))]
    factors = between(u[2:5], jnp.maximum(1 - strengths, 0), 1 + strengths)
    shift = between(u[5], -hue, hue)
    return jitter(image, order, jnp.where(changed, factors, 1), jnp.where(changed, shift, 0))


def random_brightness_contrast(u: Array, image: Array, strength: float) -> Array:
    """Change brightness, then contrast, by factors uniform in [1 - strength, 1 + strength].

    Args:
        u: [2] uniform in [0, 1): brightness, contrast.
        image: [c, h, w].
        strength: range of the factors, in [0, 1].
    """
    factors = between(u, 1 - strength, 1 + strength)
    return contrast(brightness(image, factors[0]), factors[1])


def blur(image: Array, kernel: int, sigma: Array) -> Array:
    """Blur an image by a Gaussian with reflection at the borders, as in torchvision.

    Args:
        image: [c, h, w].
        kernel: side of the kernel in pixels: odd, static, less than twice the sides of the image.
        sigma: standard deviation in pixels, >= 0. With 0, the image is returned exactly.

    Raises:
        ValueError: if the kernel is even or too large.
    """
    _, h, w = image.shape
    if kernel < 1 or kernel % 2 == 0 or kernel // 2 >= min(h, w):
        raise ValueError(f"blur kernel must be odd and less than {2 * min(h, w)}, got {kernel}")
    rows, columns = _blur_weights(h, kernel, sigma), _blur_weights(w, kernel, sigma)
    # The filter weights sum to 1 only up to rounding, so values may leave [0, 1] slightly.
    return jnp.clip(_resample(rows, image, columns), 0, 1)


def random_blur(
    u: Array, image: Array, kernel: int, sigma: Sequence[float], probability: float
) -> Array:
    """Blur an image with ``probability`` by a Gaussian of uniformly distributed sigma.

    Args:
        u: [2] uniform in [0, 1): whether to blur, sigma.
        image: [c, h, w].
        kernel: side of the kernel in pixels, odd.
        sigma: smallest and largest standard deviation in pixels, >= 0.
        probability: probability of blurring.
    """
    blurred = blur(image, kernel, between(u[1], sigma[0], sigma[1]))
    return jnp.where(u[0] < probability, blurred, image)


def solarize(image: Array, threshold: Array | float = 0.5) -> Array:
    """Invert the values of an image that are >= ``threshold`` (0.5 stands for Pillow's 128)."""
    return jnp.where(image >= threshold, 1 - image, image)


def random_solarize(u: Array, image: Array, probability: float) -> Array:
    """Solarize an image at 0.5 with ``probability``. ``u`` [] is uniform in [0, 1)."""
    return jnp.where(u < probability, solarize(image), image)


def posterize(image: Array, bits: Array | int) -> Array:
    """Reduce each value of an image to its highest ``bits`` (0 to 8, int32) of 8 bits."""
    dropped = 8 - bits
    levels = jnp.left_shift(jnp.right_shift(_levels(image), dropped), dropped)
    return levels.astype(jnp.float32) / 255


def autocontrast(image: Array) -> Array:
    """Stretch each channel of an image to [0, 1]. Constant channels are unchanged."""
    low = jnp.min(image, axis=(1, 2), keepdims=True)
    high = jnp.max(image, axis=(1, 2), keepdims=True)
    span = high - low
    return jnp.where(span > 0, (image - low) / jnp.where(span > 0, span, 1), image)


def equalize(image: Array) -> Array:
    """Equalise the histogram of each channel of an image, as Pillow's ``ImageOps.equalize``.

    Values are rounded to 256 levels. As in Pillow, a channel is unchanged if it has fewer than 255
    pixels below its brightest level.
    """
    c, h, w = image.shape
    bins = _levels(image).reshape(c, h * w) + 256 * jnp.arange(c)[:, None]
    counts = jnp.zeros(c * 256, jnp.int32).at[bins.reshape(-1)].add(1, mode="promise_in_bounds")
    counts = counts.reshape(c, 256).astype(jnp.float32)
    # ``below`` counts the pixels below each level. The product with a triangular matrix is faster
    # than a cumulative sum, and exact up to 2^24 pixels.
    triangle = jnp.triu(jnp.ones((256, 256), jnp.float32), 1)
    below = jnp.dot(counts, triangle, precision=jax.lax.Precision.HIGHEST)
    step = jnp.floor(jnp.max(jnp.where(counts > 0, below, 0), axis=1, keepdims=True) / 255)
    below_pixel = below.reshape(-1).at[bins].get(mode="promise_in_bounds")
    # In float32 an exact quotient could round to just below or just above its integer. Half a unit
    # in the numerator makes floor() safe against both.
    level = jnp.floor((below_pixel + jnp.floor(step / 2) + 0.5) / jnp.maximum(step, 1))
    mapped = (jnp.minimum(level, 255) / 255).reshape(image.shape)
    return jnp.where(step[:, :, None] > 0, mapped, image)


def smooth(image: Array) -> Array:
    """Smooth an image by a 3 x 3 mean (centre weight 5), as Pillow's ``ImageFilter.SMOOTH``."""
    _, h, w = image.shape
    # The neighbour sums are products with constant matrices. XLA would recompute shifted sums
    # wherever they are used.
    box = _resample(_neighbours(h), image, _neighbours(w))
    inner = _is_inner(h)[:, None] & _is_inner(w)[None, :]
    return jnp.where(inner[None], (box + 4 * image) / 13, image)


def _levels(image: Array) -> Array:
    """Round values in [0, 1] to int32 levels from 0 to 255."""
    return jnp.round(image * 255).astype(jnp.int32)


def _resample(rows: Array, image: Array, columns: Array) -> Array:
    """Resample an image [c, h, w] by row weights [y, h] and column weights [x, w]."""
    return jnp.einsum("yh,chw,xw->cyx", rows, image, columns, precision=jax.lax.Precision.HIGHEST)


def _neighbours(n: int) -> Array:
    """Return a matrix [n, n] with 1 where row and column index differ by at most one, else 0."""
    return (jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n)[None, :]) <= 1).astype(jnp.float32)


def _is_inner(n: int) -> Array:
    """Return a bool vector [n], True except at the first and the last index."""
    return (jnp.arange(n) > 0) & (jnp.arange(n) < n - 1)


def _blur_weights(n: int, kernel: int, sigma: Array) -> Array:
    """Return Gaussian weights [n, n] from input pixels to output pixels. Rows sum to 1."""
    i, j = jnp.arange(n)[:, None], jnp.arange(n)[None, :]
    sigma = jnp.maximum(sigma, 1e-6)  # A sigma of 0 would make the quotient 0 / 0.

    def weight(distance: Array, exists: Array | bool = True) -> Array:
        gaussian = jnp.exp(-0.5 * (distance.astype(jnp.float32) / sigma) ** 2)
        return jnp.where(exists & (jnp.abs(distance) <= kernel // 2), gaussian, 0)

    # A pixel's weight is the sum of the kernel at the pixel and at the reflections of the pixel at
    # both borders. Border pixels are not repeated.
    weights = weight(i - j) + weight(i + j, j > 0) + weight(2 * (n - 1) - i - j, j < n - 1)
    return weights / jnp.sum(weights, axis=1, keepdims=True)
