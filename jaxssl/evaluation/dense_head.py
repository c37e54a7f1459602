"""Train a head on the feature maps of a ResNet that predicts the surface normal of each pixel."""

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.typing import Collection, VariableDict
from jax import Array
from jax import numpy as jnp
from PIL import Image
from sklearn.cluster import KMeans

from jaxssl.augment.views import Inputs, match_channels, standardise, to_float
from jaxssl.data.decoders import decoding
from jaxssl.models import encoder as networks
from jaxssl.models._layers import batch_norm
from jaxssl.models.resnet import ResNet
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.training import optim

MULTIPLE = 8  # The sides of resized images are multiples of this number.
MOST_IMAGES, PER_IMAGE = 200, 200  # largest numbers of images, and of normals of each, for k-means

# Function from indices to pictures with their surface normals [h, w, 3].
Read = Callable[[np.ndarray], Sequence[tuple[decoding.Picture, np.ndarray]]]
# Function from a picture and a size (h, w) to its predicted surface normals [h, w, 3].
Predict = Callable[[decoding.Picture, tuple[int, int]], np.ndarray]


class Training(NamedTuple):
    """Settings of a head that predicts surface normals for each pixel, and of the head's training.

    Attributes:
        sides: short sides in pixels. A training step draws one, predictions average over all.
        steps: length of the training.
        batch_size: images of a step, at most the number of training images.
        lr: learning rate of SGD at first. It falls to 0 as (1 - step / steps) ** 0.9.
        momentum: of SGD.
        weight_decay: L2 of the kernels.
        directions: number of directions that normals are quantised to.
        width: channels of the head.
        dropout: share of the head's channels that a training step drops.
        frozen: train the head only, on the backbone in evaluation mode.
    """

    sides: tuple[int, ...]
    steps: int
    batch_size: int
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 1e-4
    directions: int = 40
    width: int = 512
    dropout: float = 0.1
    frozen: bool = True


class _State(NamedTuple):
    """Training state: variables of the networks "net" and "head", and the optimiser's state.

    Attributes:
        trained: the trained parameters, by network.
        frozen: the other parameters, by network.
        stats: BatchNorm statistics by network.
        opt_state: state of the optimiser.
    """

    trained: Collection
    frozen: Collection
    stats: Collection
    opt_state: optax.OptState

    @property
    def params(self) -> Collection:
        """Return the parameters of backbone and head, frozen and trained ones."""
        return {**self.frozen, **self.trained}


class PyramidPooling(nn.Module):
    """PSPNet's head: feature maps concatenated with means over grid cells, and two convolutions.

    Attributes:
        outputs: channels of the result.
        width: channels of each grid, and of the first convolution.
        dropout: share of the channels that are dropped in training.

    References:
        Zhao et al., Pyramid Scene Parsing Network, 2017.
    """

    outputs: int
    width: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, *, train: bool) -> Array:
        """Return scores [n, h, w, outputs] of feature maps [n, h, w, c]."""
        conv = partial(nn.Conv, kernel_init=nn.initializers.kaiming_normal())
        norm = partial(batch_norm, train=train, axis_name=None)
        n, h, w, _ = x.shape
        maps = [x]
        for cells in (1, 2, 3, 6):
            rows, columns = (jnp.asarray(_cell_weights(side, cells)) for side in (h, w))
            y = jnp.einsum("ih,nhwc,jw->nijc", rows, x, columns)
            y = nn.relu(norm(conv(self.width, (1, 1), use_bias=False)(y)))
            maps.append(jax.image.resize(y, (n, h, w, self.width), "bilinear"))
        y = jnp.concatenate(maps, axis=3)
        y = nn.relu(norm(conv(self.width, (3, 3), use_bias=False)(y)))
        y = nn.Dropout(self.dropout, broadcast_dims=(1, 2), deterministic=not train)(y)
        return conv(self.outputs, (1, 1))(y)


def _cell_weights(side: int, cells: int) -> np.ndarray:
    """Return the weights [cells, side] of the means over cells, as PyTorch's adaptive pooling."""
    cell, pixel = np.arange(cells)[:, None], np.arange(side)
    start, end = cell * side // cells, -(-(cell + 1) * side // cells)
    inside = (pixel >= start) & (pixel < end)
    return (inside / inside.sum(axis=1, keepdims=True)).astype(np.float32)


def fit_dense_head(
    pretrained: PretrainedEncoder, training: Training, read: Read, number: int, seed: int
) -> tuple[Predict, VariableDict]:
    """Train a dense head on a ResNet, which is fine-tuned unless frozen, on one device.

    The head classifies each pixel by the nearest of some directions, which are k-means of training
    normals. The predicted normal is the mean of the directions by the classes' probabilities.

    Args:
        pretrained: the encoder.
        training: the settings.
        read: reads training images by index.
        number: of training images.
        seed: of the head, the directions, the order of the images and their sizes.

    Returns:
        The function that predicts normals, and the variables of the backbone. It raises ValueError
        for a prediction that is not finite.

    Raises:
        ValueError: if the backbone is not a ResNet, or the normals are too few.
    """
    net, inputs = pretrained.encoder.net, pretrained.inputs
    if not isinstance(net, ResNet):
        raise ValueError(f"dense predictions need the maps of a ResNet, got {type(net).__name__}")
    encoder = pretrained.encoder._replace(net=net.clone(maps=True))
    head = PyramidPooling(training.directions, training.width, training.dropout)
    lr = optax.polynomial_schedule(training.lr, 0.0, 0.9, training.steps)
    optimiser = optim.optimiser(
        "sgd",
        lambda step: jnp.asarray(lr(step)),
        weight_decay=training.weight_decay,
        momentum=training.momentum,
    )
    step = _make_step(encoder, head, optimiser, inputs)
    rng = np.random.default_rng(seed)
    init_key, train_key = jax.random.split(jax.random.key(seed))

    # ---- The directions, and the initial variables.
    params, net_stats = (pretrained.variables["net"][kind] for kind in ("params", "batch_stats"))

    @cache
    def map_shape(h: int, w: int) -> tuple[int, ...]:
        x = jax.ShapeDtypeStruct((1, h, w, inputs.channels), jnp.float32)
        return jax.eval_shape(partial(networks.features, encoder), params, net_stats, x).shape

    directions = _find_directions(read, rng.permutation(number)[:MOST_IMAGES], training, rng)
    variables = head.init(init_key, jnp.zeros(map_shape(64, 64)), train=False)
    trained, frozen = {"head": variables["params"]}, {"net": params}
    if not training.frozen:
        trained, frozen = {**trained, **frozen}, {}
    stats = {"net": net_stats, "head": variables["batch_stats"]}
    state = _State(trained, frozen, stats, optimiser.init(trained))

    # ---- Training. Each epoch has another order, and a batch may span two epochs.
    order = itertools.chain.from_iterable(rng.permutation(number) for _ in itertools.count())
    for i in range(training.steps):
        side = int(rng.choice(training.sides))
        indices = list(itertools.islice(order, min(training.batch_size, number)))
        examples = list(read(np.array(indices)))
        images = np.stack([resize(picture, side) for picture, _ in examples])
        grid = map_shape(*images.shape[1:3])[1:3]
        labels = np.stack([quantise(normals, directions, *grid) for _, normals in examples])
        state = step(state, images, labels, jax.random.fold_in(train_key, i))

    # ---- Prediction.
    @partial(jax.jit, static_argnums=2)
    def mean_directions(state: _State, image: Array, shape: tuple[int, int]) -> Array:
        x = _prepare(image[None], inputs)
        h = networks.features(encoder, state.params["net"], state.stats["net"], x)
        variables = {"params": state.params["head"], "batch_stats": state.stats["head"]}
        scores = cast(Array, head.apply(variables, h, train=False))
        scores = jax.image.resize(scores[0], (*shape, training.directions), "bilinear")
        return jnp.matmul(jax.nn.softmax(scores), directions, precision="highest")

    def predict(picture: decoding.Picture, shape: tuple[int, int]) -> np.ndarray:
        images = [resize(picture, side) for side in training.sides]
        vectors = np.sum([np.asarray(mean_directions(state, x, shape)) for x in images], axis=0)
        if not np.isfinite(vectors).all():
            raise ValueError("predictions must be finite, got NaN or infinity; training diverged")
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

    return predict, {"params": state.params["net"], "batch_stats": state.stats["net"]}


def _make_step(
    encoder: networks.Encoder,
    head: PyramidPooling,
    optimiser: optax.GradientTransformation,
    inputs: Inputs,
) -> Callable[..., _State]:
    """Build the jitted step ``(state, uint8 images, labels, key) -> state``. Label -1 is ignored.

    A frozen backbone is in evaluation mode.
    """

    @jax.jit
    def step(state: _State, images: Array, labels: Array, key: Array) -> _State:
        has_normal = labels >= 0

        def loss(trained: Collection) -> tuple[Array, Collection]:
            params = {**state.frozen, **trained}
            backbone = encoder, params["net"], state.stats["net"], _prepare(images, inputs)
            if "net" in state.frozen:
                h, net_stats = networks.features(*backbone), state.stats["net"]
            else:
                h, net_stats = networks.features_in_training(*backbone, axis_name=None, keys=None)
            variables = {"params": params["head"], "batch_stats": state.stats["head"]}
            options = {"rngs": {"dropout": key}, "mutable": ["batch_stats"]}
            scores, new = head.apply(variables, h, train=True, **options)
            cross_entropy = optax.softmax_cross_entropy_with_integer_labels
            losses = cross_entropy(scores.astype(jnp.float32), jnp.where(has_normal, labels, 0))
            count = jnp.maximum(jnp.sum(has_normal, dtype=jnp.float32), 1)
            new_stats = {"net": net_stats, "head": new["batch_stats"]}
            return jnp.sum(losses, where=has_normal) / count, new_stats

        grads, stats = jax.grad(loss, has_aux=True)(state.trained)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.trained)
        trained = cast(Collection, optax.apply_updates(state.trained, updates))
        return _State(trained, state.frozen, stats, opt_state)

    return step


def _prepare(images: Array, inputs: Inputs) -> Array:
    """Scale and standardise uint8 images. Their size does not change."""
    return standardise(match_channels(to_float(images), inputs.channels), inputs)


def _find_directions(
    read: Read, indices: np.ndarray, training: Training, rng: np.random.Generator
) -> np.ndarray:
    """Return the k-means centres of the images' normals as unit vectors [k, 3].

    Raises:
        ValueError: if fewer than k pixels have a normal.
    """
    sample = []
    for i in indices:
        [(_, normals)] = read(np.array([i]))  # one at a time, to save memory
        finite = normals[np.isfinite(normals[..., 0])]
        sample.append(rng.permutation(finite)[:PER_IMAGE])
    vectors = np.concatenate(sample)
    if len(vectors) < training.directions:
        raise ValueError(
            f"{training.directions} directions need as many pixels with a known normal or more, "
            f"got {len(vectors)}; add training images, or normals of them"
        )
    means = KMeans(training.directions, random_state=int(rng.integers(2**32))).fit(vectors)
    centers = means.cluster_centers_
    return (centers / np.linalg.norm(centers, axis=1, keepdims=True)).astype(np.float32)


def resize(picture: decoding.Picture, side: int) -> np.ndarray:
    """Resize a picture to short side ``side``, with sides rounded up to multiples of `MULTIPLE`."""
    scale = side / min(picture.width, picture.height)
    w, h = (-(-round(x * scale) // MULTIPLE) * MULTIPLE for x in (picture.width, picture.height))
    return decoding.pixels(picture.resize((w, h), Image.Resampling.BILINEAR))


def quantise(normals: np.ndarray, directions: np.ndarray, h: int, w: int) -> np.ndarray:
    """Return the index of the nearest direction to the normal at the centre of each cell of a grid.

    Args:
        normals: [H, W, 3], NaN where they are not known.
        directions: [k, 3] unit vectors.
        h: number of cells along the vertical axis.
        w: number of cells along the horizontal axis.

    Returns:
        [h, w] int32 in [0, k), or -1 where the normal is not known.
    """
    rows, columns = (
        ((np.arange(n) + 0.5) * side / n).astype(int)
        for n, side in zip((h, w), normals.shape[:2], strict=True)
    )
    chosen = normals[rows[:, None], columns]
    nearest = np.argmax(np.nan_to_num(chosen) @ directions.T, axis=-1)
    return np.where(np.isfinite(chosen[..., 0]), nearest, -1).astype(np.int32)
