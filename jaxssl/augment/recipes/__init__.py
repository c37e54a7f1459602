"""Recipes of random views, a file each; `augment.name` in a config names the file.

A file has ``recipe(**hyper) -> (key, image) -> view``. The image is [h, w, c], float in [0, 1]; the
view is [size, size, c], in the same range. Every recipe has a ``size``: evaluation resizes images
to it. A recipe draws its uniform numbers in one call, because compiling the random generator takes
longer than compiling the operations.

A recipe for other examples than images names their kind as `EXAMPLES`: "graph" is
``(keys, row of graphs) -> row``, "video" is for clips [t, h, w, c], "image_text" for images with
captions. Here each recipe has the name of its file: ``recipes.simclr(size=32)``.
"""

from jaxssl.augment.recipes._common import Recipe
from jaxssl.augment.recipes.clip import recipe as clip
from jaxssl.augment.recipes.digits import recipe as digits
from jaxssl.augment.recipes.graph import recipe as graph
from jaxssl.augment.recipes.policy import recipe as policy
from jaxssl.augment.recipes.simclr import recipe as simclr
from jaxssl.augment.recipes.video import recipe as video

__all__ = ["Recipe", "clip", "digits", "graph", "policy", "simclr", "video"]
