"""Surface normals of images, [h, w, 3] float32: unit vectors, NaN where they are not known."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from jaxssl.buckets import fetch
from jaxssl.components import Settings
from jaxssl.data.decoders.decoding import Picture
from jaxssl.data.records import Record
from jaxssl.data.splits import Source
from jaxssl.errors import one_line


class Camera(NamedTuple):
    """Focal lengths and centre of a pinhole camera, in pixels."""

    fx: float
    fy: float
    cx: float
    cy: float


# The RGB camera of NYUv2, from the toolbox of its authors, for 640 x 480 pixels.
NYU = Camera(518.85790, 519.46961, 325.58245, 253.73617)


def from_depth(depth: np.ndarray, camera: Camera = NYU, radius: int = 5) -> np.ndarray:
    r"""Compute normals that face the camera from a depth image.

    On a plane :math:`n \cdot P = c`, :math:`1 / z = (n_1 (u - c_x) / f_x + n_2 (v - c_y) / f_y +
    n_3) / c` is linear in the pixel (u, v). It is fitted by least squares in a square window, so
    planes are exact. x points to the right, y down, z away from the camera.

    Args:
        depth: [h, w], z in any unit. It is not known where it is 0, NaN or infinite.
        camera: that took the image.
        radius: of the window, in pixels. Normals whose window has unknown depths, or crosses the
            border of the image, are not known.

    Returns:
        [h, w, 3] float32 unit vectors, NaN where they are not known.
    """
    has_depth = np.isfinite(depth) & (depth > 0)
    inverse = np.where(has_depth, 1 / np.where(has_depth, depth, 1).astype(np.float64), 0)
    offsets = np.arange(-radius, radius + 1.0)
    mean, slope = np.full(len(offsets), 1 / len(offsets)), offsets / np.sum(offsets**2)

    def fit(vertical: np.ndarray, horizontal: np.ndarray) -> np.ndarray:
        filtered = ndimage.correlate1d(inverse, vertical, axis=0)
        return ndimage.correlate1d(filtered, horizontal, axis=1)

    du, dv = fit(mean, slope), fit(slope, mean)
    v, u = np.mgrid[: depth.shape[0], : depth.shape[1]]
    third = fit(mean, mean) - du * (u - camera.cx) - dv * (v - camera.cy)
    is_known = ndimage.minimum_filter(has_depth, 2 * radius + 1, mode="constant")
    vectors = -np.stack([du * camera.fx, dv * camera.fy, third], axis=-1)
    return _unit(np.where(is_known[..., None], vectors, 0))


def check(source: Source, data: Settings) -> None:
    """Check that every image of a split has surface normals.

    Args:
        source: the images.
        data: the group `config.data`. Its "path" is the folder of the pictures.

    Raises:
        ValueError: if the images have several sizes, or one has no normals, or normals of another
            size or dtype.
    """
    if not source.one_size:
        raise ValueError(f"{source.split!r} must have images of one size, got several")
    expected = [*source.shape[:2], 3]
    for i in range(len(source)):
        [(_, record)] = source.read_records(np.array([i]))
        if "depth" in record:
            return
        if "file" not in record or not data.get("path"):
            raise ValueError(
                f"{source.name!r} has images without normals; expected --dataset nyu_depth_v2, or "
                "folder with the normals of NAME.jpg in NAME.npy"
            )
        path = _path(record, data)
        if not path.is_file():
            name = record["file"].decode()
            raise ValueError(f"the image {name} has no normals; expected {path} {expected}")
        try:
            normals = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
        if not np.issubdtype(normals.dtype, np.floating):
            raise ValueError(f"{path} has the dtype {normals.dtype}, expected floats")
        if list(normals.shape) != expected:
            raise ValueError(
                f"{path} has the shape {list(normals.shape)}, expected {expected} like the image"
            )


def read(source: Source, indices: np.ndarray, data: Settings) -> list[tuple[Picture, np.ndarray]]:
    """Read pictures with their normals, from .npy files or from depth images of the camera `NYU`.

    Args:
        source: the images, which `check` has accepted.
        indices: [k] of images.
        data: as for `check`.

    Returns:
        k pairs of a picture and its normals [h, w, 3] float32.
    """

    def normals_of(record: Record) -> np.ndarray:
        if "depth" in record:
            return from_depth(np.asarray(record["depth"], np.float32))
        return _unit(np.load(_path(record, data), allow_pickle=False))

    records = source.read_records(indices)
    return [(part.decode(record), normals_of(record)) for part, record in records]


def _path(record: Record, data: Settings) -> Path:
    """Return the path of the file with the normals of a picture."""
    return (_folder(data["path"]) / record["file"].decode()).with_suffix(".npy")


@cache
def _folder(path: str) -> Path:
    """Return the folder on the disk. A bucket is looked up once, not for every picture."""
    return fetch(path).expanduser()


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors [..., 3] to length 1. A vector of zeros, or one with infinity, becomes NaN."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    has_length = (length > 0) & (length < np.inf)
    unit = vectors / np.where(has_length, length, 1)
    return np.where(has_length, unit, np.nan).astype(np.float32)


def angles(predicted: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Compute the angles in degrees between vectors [..., 3], where both are known.

    Returns:
        [n] float32, in [0, 180], where n is the number of pixels with two known vectors.
    """
    is_known = np.isfinite(predicted).all(axis=-1) & np.isfinite(target).all(axis=-1)
    a, b = (np.asarray(x, np.float64)[is_known] for x in (predicted, target))
    # The arc tangent is exact for small angles, where the arc cosine is not.
    sine = np.linalg.norm(np.cross(a, b), axis=-1)
    return np.degrees(np.arctan2(sine, np.sum(a * b, axis=-1))).astype(np.float32)
