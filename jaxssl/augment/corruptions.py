"""The fifteen common corruptions of ImageNet-C and CIFAR-10-C, for one image [h, w, c] in [0, 1].

Every corruption is ``(u, image, severity) -> image``. ``u`` are uniform numbers from `draws`, so
that one compiled generator serves all of them; ``severity`` is a traced integer of 1 to 5, so that
a corruption compiles once. `jax.vmap` makes batches.

Constants are those of the authors' program for CIFAR-10-C. They count pixels of a 32 x 32 image;
larger images get blurs, streaks and displacements in proportion, smaller ones those of 32 x 32 (a
blur of less than a pixel does nothing). What differs from that program, besides the generator:

* shot_noise: the Poisson count is its quantile expanded to second order (Cornish and Fisher).
* glass_blur, elastic_transform: their Gaussian filters mirror the border.
* glass_blur: all pixels move at once, instead of being swapped one after the other.
* zoom_blur, snow: zooms are about the exact centre; larger images get larger flakes.
* fog: the fractal is a sum of interpolated noises, as strong as those of diamond-square.
* frost: ice is a ridged fractal instead of a crop of six photographs.
* elastic_transform: the affine and the elastic displacement are added, and interpolated once.
* jpeg_compression: baseline JPEG without its lossless coding; 4:2:0, integers rounded once a step.

References:
    Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations, 2019.
"""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.scipy.ndimage import map_coordinates

from jaxssl.augment import colour, jpeg
from jaxssl.augment.image import between, choose, random_noise

SIDE = 32  # pixels of the images that lengths below are for
SEVERITIES = (1, 2, 3, 4, 5)


def draws(key: Array, shape: tuple[int, ...]) -> Array:
    """The uniform numbers in [0, 1) that any corruption of an image of a shape [h, w, c] takes."""
    # Two passes of two numbers a pixel, or a fractal of up to twice as many points a side.
    return jax.random.uniform(key, (4 * max(shape[:2]) ** 2 + 8,))


def corrupt(name: str, key: Array, image: Array, severity: Array | int) -> Array:
    """The image as one of `CORRUPTIONS` leaves it.

    Args:
        name: of the corruption, such as "fog".
        key: of this image alone, folded from its index.
        image: [h, w, c] float32 in [0, 1]; c is 1 or 3.
        severity: 1 to 5.

    Returns:
        [h, w, c] in [0, 1].

    Raises:
        ValueError: on an unknown name.
    """
    if name not in CORRUPTIONS:
        raise ValueError(f"corruption {name!r} is unknown; one of {', '.join(CORRUPTIONS)}")
    return CORRUPTIONS[name](draws(key, image.shape), image, severity)


def gaussian_noise(u: Array, image: Array, severity: Array) -> Array:
    """Normal noise of every value."""
    stddev = _at(severity, [0.04, 0.06, 0.08, 0.09, 0.10])
    return random_noise(_first(u, image.shape), image, stddev)


def shot_noise(u: Array, image: Array, severity: Array) -> Array:
    """As many photons as a Poisson count of the expected ones."""
    full = _at(severity, [500, 250, 100, 75, 50])
    z = _normal(_first(u, image.shape))
    expected = image * full
    count = jnp.floor(expected + jnp.sqrt(expected) * z + (z**2 - 1) / 6 + 0.5)
    return jnp.clip(jnp.where(image > 0, count / full, 0), 0, 1)


def impulse_noise(u: Array, image: Array, severity: Array) -> Array:
    """Salt and pepper: a share of the values becomes 0 or 1."""
    share = _at(severity, [0.01, 0.02, 0.03, 0.05, 0.07])
    u = _first(u, image.shape)
    return jnp.where(u < share / 2, 0, jnp.where(u > 1 - share / 2, 1, image))


def defocus_blur(u: Array, image: Array, severity: Array) -> Array:
    """Mean over a softened disk."""
    del u
    kernel = _at(severity, disks(_scale(image)))
    planes = jnp.moveaxis(image, 2, 0)[:, None]
    pad = kernel.shape[0] // 2
    planes = jnp.pad(planes, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
    blurred = lax.conv(planes, kernel[None, None], (1, 1), "VALID", precision=HIGHEST)
    return jnp.clip(jnp.moveaxis(blurred[:, 0], 0, 2), 0, 1)


def disks(scale: float) -> np.ndarray:
    """[5, k, k] kernel of `defocus_blur` at each severity; each sums to 1."""
    radius = scale * np.array([0.3, 0.4, 0.5, 1, 1.5])
    sigma = scale * np.array([0.4, 0.5, 0.6, 0.2, 0.1])
    soft = math.ceil(scale)  # the Gaussian reaches that far, as in the program
    reach = math.ceil(radius[-1]) + soft
    x = np.arange(-reach, reach + 1)
    found = []
    for r, s in zip(radius, sigma, strict=True):
        disk = (x[:, None] ** 2 + x**2 <= r**2).astype(np.float64)
        distance = np.abs(x[:, None] - x)
        tap = np.where(distance <= soft, np.exp(-0.5 * (distance / s) ** 2), 0)
        kernel = tap @ disk @ tap.T
        found.append(kernel / kernel.sum())
    return np.array(found)


def glass_blur(u: Array, image: Array, severity: Array) -> Array:
    """Blur, let pixels take one of their neighbours' places, blur."""
    scale, (h, w, _) = _scale(image), image.shape
    sigma = scale * _at(severity, [0.05, 0.25, 0.4, 0.25, 0.4])
    twice = severity > 3
    taps = 2 * min(math.ceil(4 * 0.4 * scale), min(h, w) - 1) + 1
    reach = round(scale)

    def moved(planes: Array, u: Array) -> Array:
        by = choose(_first(u, (2, h, w)), 2 * reach + 1) - reach
        rows = jnp.clip(jnp.arange(h)[:, None] + by[0], 0, h - 1)
        columns = jnp.clip(jnp.arange(w)[None, :] + by[1], 0, w - 1)
        return planes.reshape(-1, h * w)[:, rows * w + columns]

    planes = colour.blur(jnp.moveaxis(image, 2, 0), taps, sigma)
    planes = moved(planes, u)
    planes = jnp.where(twice, moved(planes, u[2 * h * w :]), planes)
    return jnp.moveaxis(colour.blur(planes, taps, sigma), 0, 2)


def motion_blur(u: Array, image: Array, severity: Array) -> Array:
    """A trail in a direction within 45 degrees of the horizontal."""
    radius = _at(severity, [6, 6, 6, 8, 9])
    sigma = _at(severity, [1, 1.5, 2, 2, 2.5])
    return _trail(image, between(u[0], -jnp.pi / 4, jnp.pi / 4), radius, sigma)


def zoom_blur(u: Array, image: Array, severity: Array) -> Array:
    """Mean of the image and of ever larger ones, in steps of a hundredth."""
    del u
    steps = _at(severity, [7, 12, 16, 21, 26])
    h, w = image.shape[:2]

    def add(i: Array, total: Array) -> Array:
        factor = 1 + 0.01 * i.astype(jnp.float32)
        return total + _product(_zoom(h, factor), image, _zoom(w, factor))

    return jnp.clip(lax.fori_loop(0, steps.astype(jnp.int32), add, image) / (steps + 1), 0, 1)


def snow(u: Array, image: Array, severity: Array) -> Array:
    """Streaks of flakes that fall, on a whitened image."""
    mean = _at(severity, [0.1, 0.1, 0.15, 0.25, 0.3])
    stddev = _at(severity, [0.2, 0.2, 0.3, 0.3, 0.3])
    size = _at(severity, [1, 1, 1.75, 2.25, 1.25])
    least = _at(severity, [0.6, 0.5, 0.55, 0.6, 0.65])
    radius, sigma = _at(severity, [8, 10, 10, 12, 14]), _at(severity, [3, 4, 4, 6, 12])
    kept = _at(severity, [0.95, 0.9, 0.9, 0.85, 0.8])
    (h, w, _), side = image.shape, round(_scale(image))
    rows, columns = -(-h // side), -(-w // side)
    layer = mean + stddev * _normal(_first(u[1:], (rows, columns, 1)))
    layer = _product(_zoom(rows, size), layer, _zoom(columns, size))
    layer = jnp.where(layer < least, 0, jnp.clip(layer, 0, 1))
    layer = jnp.repeat(jnp.repeat(layer, side, 0), side, 1)[:h, :w]
    layer = _trail(layer, between(u[0], -0.75 * jnp.pi, -0.25 * jnp.pi), radius, sigma)
    light = jnp.moveaxis(colour.grey(jnp.moveaxis(image, 2, 0)), 0, 2)
    image = kept * image + (1 - kept) * jnp.maximum(image, 1.5 * light + 0.5)
    return jnp.clip(image + layer + layer[::-1, ::-1], 0, 1)


def frost(u: Array, image: Array, severity: Array) -> Array:
    """Ice crystals over a darkened image."""
    kept = _at(severity, [1, 1, 0.9, 0.85, 0.75])
    added = _at(severity, [0.2, 0.3, 0.4, 0.4, 0.45])
    # Ridges of a fractal: bright, branching lines where it crosses its middle.
    ridge = 1 - jnp.abs(2 * _fractal(u, image.shape, 1.25) - 1)
    ice = 0.1 + 0.9 * ridge**3
    tint = jnp.array([0.85, 0.95, 1.0] if image.shape[2] == 3 else [0.93], jnp.float32)
    return jnp.clip(kept * image + added * ice * tint[None, None, :], 0, 1)


def fog(u: Array, image: Array, severity: Array) -> Array:
    """A bright fractal cloud, which takes contrast away."""
    strength = _at(severity, [0.2, 0.5, 0.75, 1, 1.5])
    decay = _at(severity, [3, 3, 2.5, 2, 1.75])
    brightest = jnp.max(image)
    clouded = image + strength * _fractal(u, image.shape, decay)
    # A black image has no light that the cloud could take from.
    return jnp.clip(clouded * brightest / (brightest + strength), 0, 1)


def brightness(u: Array, image: Array, severity: Array) -> Array:
    """Raise the value in HSV; hue and saturation stay."""
    del u
    value = jnp.max(image, axis=2, keepdims=True)
    raised = jnp.minimum(value + _at(severity, [0.05, 0.1, 0.15, 0.2, 0.3]), 1)
    return jnp.where(value > 0, image * (raised / jnp.where(value > 0, value, 1)), raised)


def contrast(u: Array, image: Array, severity: Array) -> Array:
    """Bring each channel nearer to its mean."""
    del u
    mean = jnp.mean(image, axis=(0, 1), keepdims=True)
    factor = _at(severity, [0.75, 0.5, 0.4, 0.3, 0.15])
    return jnp.clip((image - mean) * factor + mean, 0, 1)


def elastic_transform(u: Array, image: Array, severity: Array) -> Array:
    """A random affine map and a smooth random displacement."""
    h, w, _ = image.shape
    side, scale = min(h, w), _scale(image)
    strength = scale * side * _at(severity, [0, 0.05, 0.08, 0.1, 0.1])
    sigma = side * _at(severity, [0.05, 0.2, 0.06, 0.04, 0.03])  # the first of no displacement
    bend = side * _at(severity, [0.08, 0.07, 0.06, 0.05, 0.03])
    taps = 2 * min(math.ceil(3 * 0.2 * side), side - 1) + 1
    smooth = 2 * colour.blur(_first(u[6:], (2, h, w)), taps, sigma) - 1
    # The displacements of three corners of a square in the middle fix the affine map.
    corners = between(u[:6], -bend, bend).reshape(2, 3)
    third = max(side // 3, 1)
    rows = jnp.arange(h, dtype=jnp.float32)[:, None]
    columns = jnp.arange(w, dtype=jnp.float32)[None, :]
    y, x = (rows - h // 2) / third, (columns - w // 2) / third
    down, right = (
        (1 + y) / 2 * a + (x - y) / 2 * b + (1 - x) / 2 * c + strength * displaced
        for (a, b, c), displaced in zip(corners, smooth, strict=True)
    )
    places = [rows + down, columns + right]
    return jax.vmap(lambda plane: map_coordinates(plane, places, 1, "mirror"), 2, 2)(image)


def pixelate(u: Array, image: Array, severity: Array) -> Array:
    """Shrink and enlarge with a box filter."""
    del u
    shares = (0.95, 0.9, 0.85, 0.75, 0.65)

    def there_and_back(n: int) -> Array:
        small = [max(int(n * share), 1) for share in shares]
        return _at(severity, np.array([_boxes(n, s) @ _boxes(s, n) for s in small]))

    h, w = image.shape[:2]
    return jnp.clip(_product(there_and_back(h), image, there_and_back(w)), 0, 1)


def jpeg_compression(u: Array, image: Array, severity: Array) -> Array:
    """JPEG at a low quality."""
    del u
    tables = np.array([jpeg.tables(quality) for quality in (80, 65, 58, 50, 40)])
    return jpeg.compress(image, _at(severity, tables))


CORRUPTIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    f.__name__: f
    for f in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
    )
}
HIGHEST = lax.Precision.HIGHEST


def _at(severity: Array | int, table: Sequence[float] | np.ndarray) -> Array:
    """The row of a table of five."""
    return jnp.asarray(np.asarray(table, np.float32))[jnp.asarray(severity) - 1]


def _scale(image: Array) -> float:
    """How many times as long as in an image of 32 x 32 pixels a length is."""
    return max(min(image.shape[:2]) / SIDE, 1.0)


def _first(u: Array, shape: tuple[int, ...]) -> Array:
    return u[: math.prod(shape)].reshape(shape)


def _normal(u: Array) -> Array:
    # Halfway between u and the next number drawn, where the inverse is finite.
    return jnp.sqrt(2.0) * jax.scipy.special.erfinv(2 * u - 1 + 2.0**-23)


def _product(rows: Array, image: Array, columns: Array) -> Array:
    return jnp.einsum("yh,hwc,xw->yxc", rows, image, columns, precision=HIGHEST)


def _zoom(n: int, factor: Array) -> Array:
    """[n, n] weights that enlarge n pixels about their middle; bilinear."""
    i = jnp.arange(n, dtype=jnp.float32)
    source = (i - (n - 1) / 2) / factor + (n - 1) / 2
    return jnp.maximum(0, 1 - jnp.abs(i[None, :] - source[:, None]))


def _boxes(size: int, n: int) -> np.ndarray:
    """[size, n] weights of n pixels in size ones: Pillow's box filter."""
    step = n / size
    distance = np.arange(n) + 0.5 - (np.arange(size)[:, None] + 0.5) * step
    inside = (distance / max(step, 1) > -0.5) & (distance / max(step, 1) <= 0.5)
    return inside / inside.sum(axis=1, keepdims=True)


def _trail(image: Array, angle: Array, radius: Array, sigma: Array) -> Array:
    """Half-Gaussian weights of the pixels along a line, the nearest ones; edges repeated.

    ImageMagick's motion blur of this radius, sigma and angle.
    """
    h, w, _ = image.shape
    scale = _scale(image)
    taps = 2 * jnp.ceil(radius * scale).astype(jnp.int32) + 1
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def add(i: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        distance = i.astype(jnp.float32)
        weight = jnp.exp(-0.5 * (distance / (sigma * scale)) ** 2)
        down, right = (jnp.ceil(distance * d - 0.5).astype(jnp.int32) for d in (sin, cos))
        rows = jnp.clip(jnp.arange(h) + down, 0, h - 1)
        columns = jnp.clip(jnp.arange(w) + right, 0, w - 1)
        return found[0] + weight, found[1] + weight * image[rows][:, columns]

    total, blurred = lax.fori_loop(0, taps, add, (jnp.float32(0), jnp.zeros_like(image)))
    return jnp.clip(blurred / total, 0, 1)


def _fractal(u: Array, shape: tuple[int, ...], decay: Array | float) -> Array:
    """[h, w, 1] in [0, 1]: noise of 2 x 2, 4 x 4, ... interpolated points, each / decay^2."""
    n = max(shape[:2])
    levels = range(1, math.floor(math.log2(n)) + 1)
    # All levels in one product: their noises are the blocks of a block diagonal matrix.
    level = np.repeat(levels, [2**i for i in levels])
    same = (level[:, None] == level).astype(np.float32)
    strength = jnp.float32(decay) ** jnp.asarray(-2.0 * (level - 1), jnp.float32)
    noise = (2 * _first(u, same.shape) - 1) * same * strength[:, None]
    weights = np.concatenate([_periodic(n, 2**i) for i in levels], axis=1)
    found = _product(weights[: shape[0]], noise[:, :, None], weights[: shape[1]])
    low, high = jnp.min(found), jnp.max(found)
    return (found - low) / jnp.maximum(high - low, 1e-12)


def _periodic(n: int, points: int) -> np.ndarray:
    """[n, points] weights that interpolate evenly spaced points, of which the first comes again."""
    distance = np.abs(np.arange(n)[:, None] * points / n - np.arange(points))
    return np.maximum(0, 1 - np.minimum(distance, points - distance)).astype(np.float32)
