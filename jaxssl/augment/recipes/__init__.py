"""Recipes of random views, one per file. The config key `augment.name` names the file.

A file defines ``recipe(**hyper) -> (key, image) -> view``, where the image is [h, w, c] and the
view [size, size, c], both float in [0, 1]. Every recipe has an argument ``size``, to which images
are resized for evaluation. A recipe draws all its uniform numbers in one call, because the random
generator takes longer to compile than the operations.

A recipe for other examples says so in a constant: ``EXAMPLES = "graph"`` for functions ``(keys, row
of graphs) -> row``, "video" for videos [t, h, w, c], "image_text" for images with captions. Each
recipe is also available under the name of its file, as in ``recipes.simclr(size=32)``.
"""

from jaxssl.augment.recipes._common import Recipe, needs_rgb
from jaxssl.augment.recipes.clip import recipe as clip
from jaxssl.augment.recipes.digits import recipe as digits
from jaxssl.augment.recipes.graph import recipe as graph
from jaxssl.augment.recipes.policy import recipe as policy
from jaxssl.augment.recipes.simclr import recipe as simclr
from jaxssl.augment.recipes.video import recipe as video

__all__ = ["Recipe", "clip", "digits", "graph", "needs_rgb", "policy", "simclr", "video"]
