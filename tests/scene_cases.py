"""Rendered spheres in front of planes, with known depth and normals."""

import numpy as np

from jaxssl.evaluation.surface_normals import Camera

LIGHT = np.array([0.4, -0.7, -0.6])


def render(seed, h=32, w=48, camera=None, spheres=5):
    """Return an image [h, w, 3] uint8, its depth [h, w] and its normals [h, w, 3]."""
    rng = np.random.default_rng(seed)
    camera = camera or Camera(w, w, w / 2, h / 2)
    v, u = np.mgrid[:h, :w]
    rays = np.stack([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, np.ones((h, w))], -1)
    towards = rng.normal(size=3) * [0.5, 0.5, 0] - [0, 0, 1]
    towards /= np.linalg.norm(towards)
    depth = 5 * towards[2] / (rays @ towards)  # depth of a plane through (0, 0, 5)
    normals = np.broadcast_to(towards, rays.shape).copy()
    for _ in range(spheres):
        centre, radius = rng.uniform([-1.5, -1, 3], [1.5, 1, 4]), rng.uniform(0.4, 0.8)
        # The smaller t with |t ray - centre| = radius.
        a, b = np.sum(rays**2, -1), rays @ centre
        root = b**2 - a * (centre @ centre - radius**2)
        t = (b - np.sqrt(np.maximum(root, 0))) / a
        hit = (root > 0) & (t < depth)
        depth = np.where(hit, t, depth)
        normals = np.where(hit[..., None], (t[..., None] * rays - centre) / radius, normals)
    light = np.maximum(normals @ LIGHT / np.linalg.norm(LIGHT), 0)
    grey = np.clip(50 + 180 * light + rng.normal(scale=4, size=(h, w)), 0, 255)
    return np.repeat(grey[..., None], 3, -1).astype(np.uint8), depth, normals
