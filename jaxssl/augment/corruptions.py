"""Our form of the fifteen common corruptions of ImageNet-C and CIFAR-10-C.

`corrupt` applies one of `CORRUPTIONS` to uint8 images. All but JPEG are JAX functions ``(u, image,
severity) -> image`` of one image [h, w, c] in [0, 1]. Their uniform numbers ``u`` come from `draw`,
so that one compiled random generator serves all of them. The severity, 1 to 5, is a traced integer,
so that each corruption is compiled once. JPEG runs on the host, with Pillow.

The constants are from the authors' code for CIFAR-10-C, in pixels of a 32 x 32 image. Lengths
are scaled up for larger images, and used as they are for smaller ones. ImageNet-C has other
constants for all fifteen corruptions. Seven corruptions differ from the code for CIFAR-10-C:

* shot_noise: Poisson counts come from a second-order expansion of the quantile function (Cornish
  and Fisher).
* glass_blur, elastic_transform: Gaussian filters reflect at the borders.
* glass_blur: all pixels move at once, to any neighbour, instead of being swapped one after the
  other, and only up and to the left.
* zoom_blur, snow: zooms are about the exact centre. Larger images get larger flakes.
* fog: the fractal is a sum of interpolated noise, as strong as the diamond-square fractal.
* frost: ice is a ridged fractal instead of a crop of one of five photographs.
* elastic_transform: the affine and the elastic displacement are added, and interpolated once.

The other eight are equal but for the random generator and for values that are rounded, where the
authors' code truncates them.

References:
    Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations, 2019.
"""

import io
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jax.typing import ArrayLike
from PIL import Image

from jaxssl.augment import colour
from jaxssl.augment.image import between, choose, random_noise, resample, to_normal

SIDE = 32  # The severity constants below apply to images of this side in pixels.
SEVERITIES = (1, 2, 3, 4, 5)
JPEG_QUALITIES = (80, 65, 58, 50, 40)  # Pillow's JPEG quality at severities 1 to 5
BLOCK_PIXELS, MAX_BLOCK = 2**16, 256  # most pixels and images that are corrupted in one call


def corrupt(name: str, images: np.ndarray, severity: int, *, seed: int) -> np.ndarray:
    """Apply an ImageNet-C corruption to uint8 images [n, h, w, c].

    The random numbers for image i depend only on the seed and i, and are equal for all severities.

    Args:
        name: one of `CORRUPTIONS`, such as "fog".
        images: [n, h, w, c] uint8, where c is 1 or 3.
        severity: one of `SEVERITIES`.
        seed: seed of the random numbers.

    Returns:
        [n, h, w, c] uint8.

    Raises:
        ValueError: if ``name`` or ``severity`` is unknown, or images have another dtype or number
            of channels.
    """
    if images.dtype != np.uint8:
        raise ValueError(f"corruptions need uint8 images, from 0 to 255, got {images.dtype}")
    if images.shape[3] not in (1, 3):
        raise ValueError(f"corruptions need grey or RGB images, got {images.shape[3]} channels")
    if name not in CORRUPTIONS:
        raise ValueError(f"corruption must be one of {', '.join(CORRUPTIONS)}, got {name!r}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be one of {SEVERITIES}, got {severity!r}")
    if name == "jpeg_compression":
        return jpeg_compression(images, severity)
    n, h, w, _ = images.shape
    size = max(min(BLOCK_PIXELS // (h * w), MAX_BLOCK), 1)
    key, out = jax.random.key(seed), np.empty_like(images)
    for first in range(0, n, size):
        # The last block is padded with repeated images, so that only one program is compiled.
        block = np.resize(images[first : first + size], (size, *images.shape[1:]))
        u = _draw_block(key, np.arange(first, first + size, dtype=np.int32), images.shape[1:])
        corrupted = np.asarray(_corrupt_block(name, u, block, severity))
        out[first : first + size] = corrupted[: n - first]
    return out


def draw(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw uniform numbers in [0, 1), enough for any corruption of an image [h, w, c]."""
    # A corruption needs at most two passes of two numbers per pixel, or a fractal with up to twice
    # as many points per side.
    return jax.random.uniform(key, (4 * max(shape[:2]) ** 2 + 8,), jnp.float32)


# The random numbers are a program apart from the corruptions. The generator takes several times as
# long to compile, and this way it compiles once for all.
@partial(jax.jit, static_argnums=2)
def _draw_block(key: Array, index: ArrayLike, shape: tuple[int, ...]) -> Array:
    return jax.vmap(lambda i: draw(jax.random.fold_in(key, i), shape))(index)


@partial(jax.jit, static_argnums=0)
def _corrupt_block(name: str, u: Array, images: Array, severity: Array) -> Array:
    function = jax.vmap(JAX_CORRUPTIONS[name], in_axes=(0, 0, None))
    pixels = function(u, images.astype(jnp.float32) / 255, severity)
    return jnp.round(255 * pixels).astype(jnp.uint8)


def jpeg_compression(images: np.ndarray, severity: int) -> np.ndarray:
    """Encode uint8 images [n, h, w, c] as JPEG of low quality with Pillow and decode them.

    ``severity`` is one of `SEVERITIES`.
    """
    out = np.empty_like(images)
    for i, image in enumerate(images):
        file = io.BytesIO()
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        picture.save(file, "JPEG", quality=JPEG_QUALITIES[severity - 1])
        out[i] = np.asarray(Image.open(file)).reshape(image.shape)
    return out


def gaussian_noise(u: Array, image: Array, severity: Array) -> Array:
    """Add Gaussian noise to every value of an image."""
    stddev = _select(severity, [0.04, 0.06, 0.08, 0.09, 0.10])
    return random_noise(_take(u, image.shape), image, stddev)


def shot_noise(u: Array, image: Array, severity: Array) -> Array:
    """Replace the values of an image by Poisson counts of photons."""
    photons = _select(severity, [500, 250, 100, 75, 50])  # photons for a pixel value of 1
    z = to_normal(_take(u, image.shape))
    expected = image * photons
    count = jnp.floor(expected + jnp.sqrt(expected) * z + (z**2 - 1) / 6 + 0.5)
    return jnp.clip(jnp.where(image > 0, count / photons, 0), 0, 1)


def impulse_noise(u: Array, image: Array, severity: Array) -> Array:
    """Replace a random fraction of an image's values by 0 or 1 (salt and pepper noise)."""
    fraction = _select(severity, [0.01, 0.02, 0.03, 0.05, 0.07])
    u = _take(u, image.shape)
    return jnp.where(u < fraction / 2, 0, jnp.where(u > 1 - fraction / 2, 1, image))


def defocus_blur(u: Array, image: Array, severity: Array) -> Array:
    """Average an image over a disk with a soft edge, as an unfocused lens does."""
    kernel = _select(severity, disks(_scale(image)))
    planes = jnp.moveaxis(image, 2, 0)[:, None]
    pad = kernel.shape[0] // 2
    planes = jnp.pad(planes, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
    blurred = lax.conv(planes, kernel[None, None], (1, 1), "VALID", precision=lax.Precision.HIGHEST)
    return jnp.clip(jnp.moveaxis(blurred[:, 0], 0, 2), 0, 1)


def disks(scale: float) -> np.ndarray:
    """Return the disk kernels [5, k, k] of `defocus_blur`, one per severity. Each sums to 1."""
    radius = scale * np.array([0.3, 0.4, 0.5, 1, 1.5])
    sigma = scale * np.array([0.4, 0.5, 0.6, 0.2, 0.1])
    soft = math.ceil(scale)  # radius of the Gaussian filter as in the authors' code
    reach = math.ceil(radius[-1]) + soft
    x = np.arange(-reach, reach + 1)
    kernels = []
    for r, s in zip(radius, sigma, strict=True):
        disk = (x[:, None] ** 2 + x**2 <= r**2).astype(np.float64)
        distance = np.abs(x[:, None] - x)
        gaussian = np.where(distance <= soft, np.exp(-0.5 * (distance / s) ** 2), 0)
        kernel = gaussian @ disk @ gaussian.T
        kernels.append(kernel / kernel.sum())
    return np.array(kernels)


def glass_blur(u: Array, image: Array, severity: Array) -> Array:
    """Blur an image, move its pixels to random positions nearby, and blur it again."""
    scale, (h, w, _) = _scale(image), image.shape
    sigma = scale * _select(severity, [0.05, 0.25, 0.4, 0.25, 0.4])
    twice = severity > 3
    taps = 2 * min(math.ceil(4 * 0.4 * scale), min(h, w) - 1) + 1
    reach = round(scale)

    def shuffle(planes: Array, u: Array) -> Array:
        shift = choose(_take(u, (2, h, w)), 2 * reach + 1) - reach
        rows = jnp.clip(jnp.arange(h)[:, None] + shift[0], 0, h - 1)
        columns = jnp.clip(jnp.arange(w)[None, :] + shift[1], 0, w - 1)
        return planes.reshape(-1, h * w)[:, rows * w + columns]

    planes = colour.blur(jnp.moveaxis(image, 2, 0), taps, sigma)
    planes = shuffle(planes, u)
    planes = jnp.where(twice, shuffle(planes, u[2 * h * w :]), planes)
    return jnp.moveaxis(colour.blur(planes, taps, sigma), 0, 2)


def motion_blur(u: Array, image: Array, severity: Array) -> Array:
    """Blur an image along a random direction within 45 degrees of the horizontal."""
    radius = _select(severity, [6, 6, 6, 8, 9])
    sigma = _select(severity, [1, 1.5, 2, 2, 2.5])
    return _blur_along_line(image, between(u[0], -jnp.pi / 4, jnp.pi / 4), radius, sigma)


def zoom_blur(u: Array, image: Array, severity: Array) -> Array:
    """Average an image with enlarged copies, with zoom factors in steps of 0.01."""
    steps = _select(severity, [7, 12, 16, 21, 26])
    h, w = image.shape[:2]

    def add(i: Array, total: Array) -> Array:
        factor = 1 + 0.01 * i.astype(jnp.float32)
        return total + resample(_zoom_weights(h, factor), image, _zoom_weights(w, factor))

    return jnp.clip(lax.fori_loop(0, steps.astype(jnp.int32), add, image) / (steps + 1), 0, 1)


def snow(u: Array, image: Array, severity: Array) -> Array:
    """Whiten an image and add streaks of falling snowflakes."""
    mean = _select(severity, [0.1, 0.1, 0.15, 0.25, 0.3])
    stddev = _select(severity, [0.2, 0.2, 0.3, 0.3, 0.3])
    size = _select(severity, [1, 1, 1.75, 2.25, 1.25])
    threshold = _select(severity, [0.6, 0.5, 0.55, 0.6, 0.65])
    radius, sigma = _select(severity, [8, 10, 10, 12, 14]), _select(severity, [3, 4, 4, 6, 12])
    weight = _select(severity, [0.95, 0.9, 0.9, 0.85, 0.8])
    (h, w, _), side = image.shape, round(_scale(image))
    rows, columns = -(-h // side), -(-w // side)
    layer = mean + stddev * to_normal(_take(u[1:], (rows, columns, 1)))
    layer = resample(_zoom_weights(rows, size), layer, _zoom_weights(columns, size))
    layer = jnp.where(layer < threshold, 0, jnp.clip(layer, 0, 1))
    layer = jnp.repeat(jnp.repeat(layer, side, 0), side, 1)[:h, :w]
    layer = _blur_along_line(layer, between(u[0], -0.75 * jnp.pi, -0.25 * jnp.pi), radius, sigma)
    light = jnp.moveaxis(colour.grey(jnp.moveaxis(image, 2, 0)), 0, 2)
    image = weight * image + (1 - weight) * jnp.maximum(image, 1.5 * light + 0.5)
    return jnp.clip(image + layer + layer[::-1, ::-1], 0, 1)


def frost(u: Array, image: Array, severity: Array) -> Array:
    """Darken an image and add ice crystals."""
    image_weight = _select(severity, [1, 1, 0.9, 0.85, 0.75])
    ice_weight = _select(severity, [0.2, 0.3, 0.4, 0.4, 0.45])
    # A fractal crosses 0.5 along branching lines. These lines become the bright ridges of the ice.
    ridge = 1 - jnp.abs(2 * _fractal(u, image.shape, 1.25) - 1)
    ice = 0.1 + 0.9 * ridge**3
    tint = jnp.array([0.85, 0.95, 1.0] if image.shape[2] == 3 else [0.93], jnp.float32)
    return jnp.clip(image_weight * image + ice_weight * ice * tint[None, None, :], 0, 1)


def fog(u: Array, image: Array, severity: Array) -> Array:
    """Add a bright fractal cloud to an image, which reduces its contrast."""
    strength = _select(severity, [0.2, 0.5, 0.75, 1, 1.5])
    decay = _select(severity, [3, 3, 2.5, 2, 1.75])
    brightest = jnp.max(image)
    clouded = image + strength * _fractal(u, image.shape, decay)
    # The result is scaled to the image's brightest value, so that a black image stays black.
    return jnp.clip(clouded * brightest / (brightest + strength), 0, 1)


def brightness(u: Array, image: Array, severity: Array) -> Array:
    """Raise the value (V of HSV) of an image, and keep its hue and saturation."""
    value = jnp.max(image, axis=2, keepdims=True)
    raised = jnp.minimum(value + _select(severity, [0.05, 0.1, 0.15, 0.2, 0.3]), 1)
    return jnp.where(value > 0, image * (raised / jnp.where(value > 0, value, 1)), raised)


def contrast(u: Array, image: Array, severity: Array) -> Array:
    """Reduce the difference of an image's channels from the mean of each channel."""
    mean = jnp.mean(image, axis=(0, 1), keepdims=True)
    factor = _select(severity, [0.75, 0.5, 0.4, 0.3, 0.15])
    return jnp.clip((image - mean) * factor + mean, 0, 1)


def elastic_transform(u: Array, image: Array, severity: Array) -> Array:
    """Distort an image by a random affine map and a smooth random displacement."""
    h, w, _ = image.shape
    side, scale = min(h, w), _scale(image)
    # Smoothing divides the noise by about sigma, which grows with the image. The scale makes up for
    # it.
    strength = scale * side * _select(severity, [0, 0.05, 0.08, 0.1, 0.1])
    # At severity 1 the strength is 0, so that sigma has no effect.
    sigma = side * _select(severity, [0.05, 0.2, 0.06, 0.04, 0.03])
    bend = side * _select(severity, [0.08, 0.07, 0.06, 0.05, 0.03])
    taps = 2 * min(math.ceil(3 * 0.2 * side), side - 1) + 1
    smooth = 2 * colour.blur(_take(u[6:], (2, h, w)), taps, sigma) - 1
    # An affine map is determined by the random displacements of three corners of a central square.
    corners = between(u[:6], -bend, bend).reshape(2, 3)
    third = max(side // 3, 1)
    rows = jnp.arange(h, dtype=jnp.float32)[:, None]
    columns = jnp.arange(w, dtype=jnp.float32)[None, :]
    y, x = (rows - h // 2) / third, (columns - w // 2) / third
    down, right = (
        (1 + y) / 2 * a + (x - y) / 2 * b + (1 - x) / 2 * c + strength * elastic
        for (a, b, c), elastic in zip(corners, smooth, strict=True)
    )
    positions = [rows + down, columns + right]
    return jax.vmap(lambda plane: map_coordinates(plane, positions, 1, "mirror"), 2, 2)(image)


def pixelate(u: Array, image: Array, severity: Array) -> Array:
    """Shrink an image with a box filter and enlarge it again."""
    scales = (0.95, 0.9, 0.85, 0.75, 0.65)

    def weights(n: int) -> Array:
        small = [max(int(n * scale), 1) for scale in scales]
        return _select(severity, np.array([_box_weights(n, s) @ _box_weights(s, n) for s in small]))

    h, w = image.shape[:2]
    return jnp.clip(resample(weights(h), image, weights(w)), 0, 1)


JAX_CORRUPTIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    f.__name__: f
    for f in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate),
    )
}
CORRUPTIONS = (*JAX_CORRUPTIONS, "jpeg_compression")


def _select(severity: ArrayLike, table: Sequence[float] | np.ndarray) -> Array:
    """Select the row of ``table`` for a severity from 1 to 5."""
    return jnp.asarray(np.asarray(table, np.float32))[jnp.asarray(severity) - 1]


def _scale(image: Array) -> float:
    """Return the factor, >= 1, from lengths in a 32 x 32 image to lengths in this image."""
    return max(min(image.shape[:2]) / SIDE, 1.0)


def _take(u: Array, shape: tuple[int, ...]) -> Array:
    """Return the first numbers of the vector ``u`` as an array of the requested shape."""
    return u[: math.prod(shape)].reshape(shape)


def _zoom_weights(n: int, factor: Array) -> Array:
    """Return bilinear weights [n, n] that zoom a line of n pixels about its centre."""
    i = jnp.arange(n, dtype=jnp.float32)
    source = (i - (n - 1) / 2) / factor + (n - 1) / 2
    return jnp.maximum(0, 1 - jnp.abs(i[None, :] - source[:, None]))


def _box_weights(size: int, n: int) -> np.ndarray:
    """Return the weights [size, n] of Pillow's box filter from n to ``size`` pixels."""
    step = n / size
    distance = np.arange(n) + 0.5 - (np.arange(size)[:, None] + 0.5) * step
    inside = (distance / max(step, 1) > -0.5) & (distance / max(step, 1) <= 0.5)
    return inside / inside.sum(axis=1, keepdims=True)


def _blur_along_line(image: Array, angle: Array, radius: Array, sigma: Array) -> Array:
    """Average pixels along a line with half-Gaussian weights. Edge pixels are repeated.

    This is ImageMagick's motion blur with the same radius, sigma and angle.
    """
    h, w, _ = image.shape
    scale = _scale(image)
    taps = 2 * jnp.ceil(radius * scale).astype(jnp.int32) + 1
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        total, blurred = sums
        distance = i.astype(jnp.float32)
        weight = jnp.exp(-0.5 * (distance / (sigma * scale)) ** 2)
        down, right = (jnp.ceil(distance * d - 0.5).astype(jnp.int32) for d in (sin, cos))
        rows = jnp.clip(jnp.arange(h) + down, 0, h - 1)
        columns = jnp.clip(jnp.arange(w) + right, 0, w - 1)
        return total + weight, blurred + weight * image[rows][:, columns]

    total, blurred = lax.fori_loop(0, taps, add, (jnp.float32(0), jnp.zeros_like(image)))
    return jnp.clip(blurred / total, 0, 1)


def _fractal(u: Array, shape: tuple[int, ...], decay: Array | float) -> Array:
    """Return fractal noise [h, w, 1] in [0, 1], a sum over grids of 2 x 2, 4 x 4, ... points.

    Each level is weaker than the one before by a factor of ``decay ** 2``.
    """
    n = max(shape[:2])
    levels = range(1, max(1, math.floor(math.log2(n))) + 1)
    # The noise of each grid is a block of a block-diagonal matrix, so one product interpolates all
    # grids.
    level = np.repeat(levels, [2**i for i in levels])
    same = (level[:, None] == level).astype(np.float32)
    strength = jnp.float32(decay) ** jnp.asarray(-2.0 * (level - 1), jnp.float32)
    noise = (2 * _take(u, same.shape) - 1) * same * strength[:, None]
    weights = np.concatenate([_periodic_weights(n, 2**i) for i in levels], axis=1)
    fractal = resample(weights[: shape[0]], noise[:, :, None], weights[: shape[1]])
    low, high = jnp.min(fractal), jnp.max(fractal)
    return (fractal - low) / jnp.maximum(high - low, 1e-12)


def _periodic_weights(n: int, points: int) -> np.ndarray:
    """Return weights [n, points] that interpolate evenly spaced points with period n."""
    distance = np.abs(np.arange(n)[:, None] * points / n - np.arange(points))
    return np.maximum(0, 1 - np.minimum(distance, points - distance)).astype(np.float32)
