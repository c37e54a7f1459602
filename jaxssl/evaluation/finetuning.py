"""Train a classifier on a pretrained network: all of it, or a linear layer on frozen features."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import Array, lax
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxssl import collectives, distributed
from jaxssl.augment import recipes
from jaxssl.augment.mix import mix
from jaxssl.augment.views import Inputs, resize_images, to_float
from jaxssl.data.batches import make_batches
from jaxssl.data.decoding import Crop, Crops
from jaxssl.data.source import Source
from jaxssl.training import optim, schedules

BLOCK = 256  # test images at a time
RATIO = (3 / 4, 4 / 3)  # of the sides of a random resized crop
AUGMENTS = ("resized", "pad", "simclr")


class Network(NamedTuple):
    """A pretrained backbone that may be trained further.

    Attributes:
        apply: ``(variables, images [b, s, s, c] in [0, 1], *, train, axis_name=None, keys=None) ->
            (features [b, f] float32, variables)``. In training BatchNorm uses the batch and its
            statistics move; else variables come back as they were. ``keys`` [b] are for stochastic
            depth.
        variables: {"params", "batch_stats"}.
        size: s, pixels a side.
        channels: c.
        crop: share of the short side that is kept of test images of one size, see `Inputs`.
    """

    apply: Callable[..., tuple[Array, Any]]
    variables: Any
    size: int
    channels: int
    crop: float = 0.0


class Training(NamedTuple):
    """How a classifier is trained; its length is ``epochs`` or ``steps``, the other one is 0.

    Attributes:
        optimiser: see `jaxssl.training.optim.optimiser`, which decays matrices only.
        momentum: of sgd, lars and larc.
        nesterov: likewise.
        batch_size: B, over all devices; cut to the training set where that is smaller.
        epochs: without the smaller rest of each.
        steps: batches.
        schedule: see `jaxssl.training.schedules.learning_rate`.
        warmup: epochs.
        milestones: of the schedule "step", epochs.
        gamma: likewise, the factor.
        lr_batch: the peak rate is lr * B / lr_batch; 0 is lr.
        head_lr: rate of the linear layer over that of the backbone.
        head_std: of the linear layer's random weights at the start; its bias is 0.
        frozen: whether only the linear layer is trained, on features in evaluation mode.
        moving_statistics: of a frozen backbone: BatchNorm uses the batch and its statistics move,
            as in some released code; the parameters still stay.
        augment: "resized" (random resized crop and flip), "pad" (pad, crop and flip) or "simclr"
            (with SimCLR's changes of colour).
        crop_scale: smallest and largest share of the area that the resized crop keeps.
        pad: pixels on each side.
        flip: probability of mirroring left and right.
        erasing: probability of erasing a box.
        mixup: both parameters of the Beta distribution that mixup's share is drawn from; 0 is none.
        cutmix: likewise; with both, each step draws which one.
        smoothing: share of the label that is spread over all classes.
    """

    optimiser: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    batch_size: int = 64
    epochs: float = 0.0
    steps: int = 0
    schedule: str = "cosine"
    warmup: float = 0.0
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    lr_batch: int = 0
    head_lr: float = 1.0
    head_std: float = 0.0
    frozen: bool = False
    moving_statistics: bool = False
    augment: str = "resized"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    pad: int = 4
    flip: float = 0.5
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0


class Classifier(NamedTuple):
    """A backbone and a linear layer: logits are features @ kernel + bias.

    Attributes:
        variables: of the backbone, as those of `Network`.
        head: {"kernel" [f, c], "bias" [c]}.
        loss: mean over the last epoch of training; None before, or if it was not finite.
    """

    variables: Any
    head: dict[str, Array]
    loss: float | None = None


class Tuner(NamedTuple):
    """What trains and evaluates classifiers of one network; everything is compiled once.

    Attributes:
        epochs: ``(source, *, lr, weight_decay, seed, every) -> Iterator[Classifier]``, one after
            every ``every`` epochs and one at the end.
        fit: ``(source, *, lr, weight_decay, seed) -> Classifier``, the last of these.
        logits: ``(classifier, source) -> [n, c]`` of all images, whole, in evaluation mode.
    """

    epochs: Callable[..., Iterator[Classifier]]
    fit: Callable[..., Classifier]
    logits: Callable[[Classifier, Source], np.ndarray]


class _State(NamedTuple):
    params: Any  # "head", and "net" if it is trained
    stats: Any
    opt_state: Any


def settle(training: Training, num_examples: int, num_devices: int) -> Training:
    """The training as it is on a set of this size: batch size and steps are those in effect.

    Raises:
        ValueError: if there are fewer examples than devices, or not one of epochs and steps.
    """
    if (training.epochs > 0) == (training.steps > 0):
        raise ValueError(
            f"either epochs or steps must be positive, got {training.epochs} and {training.steps}"
        )
    if num_examples < num_devices:
        raise ValueError(f"{num_examples} training images are too few for {num_devices} devices")
    batch = min(training.batch_size, num_examples)
    batch = max(1, batch // num_devices) * num_devices
    steps = training.steps or max(1, round(training.epochs * (num_examples // batch)))
    return training._replace(batch_size=batch, steps=steps)


def peak_lr(training: Training, lr: float) -> float:
    """The largest rate of a `settle`d training."""
    return lr * training.batch_size / training.lr_batch if training.lr_batch else lr


def make_tuner(network: Network, training: Training, num_classes: int, mesh: Mesh) -> Tuner:
    """What trains a linear layer on a network, and the network with it unless it is frozen.

    Batches are split over the mesh. Every random draw is keyed by seed, step and the example's
    place in the source, so that the same seed gives the same classifier on any number of devices
    that divide the batch (a batch is cut to a multiple of them, see `settle`). Learning rate and
    weight decay are arguments of the compiled step: a search compiles once.

    Args:
        network: where training begins; it stays as it is.
        training: the settings.
        num_classes: c, >= 2.
        mesh: the devices.

    Raises:
        ValueError: on an unknown augmentation, or fewer than two classes.
    """
    if training.augment not in AUGMENTS:
        raise ValueError(f"augment is {training.augment!r}; expected one of {', '.join(AUGMENTS)}")
    if num_classes < 2:
        raise ValueError(f"a classifier needs two classes or more, got {num_classes}")
    step = _make_step(network, training, num_classes, mesh)
    init = jax.jit(partial(_init, network, training, num_classes))
    predict = jax.jit(partial(_predict, network), static_argnums=2)

    def epochs(
        source: Source, *, lr: float, weight_decay: float, seed: int, every: int = 0
    ) -> Iterator[Classifier]:
        check_labels(source)
        settled = settle(training, len(source), mesh.size)
        rates = peak_lr(settled, lr) * _shape_of_rate(settled, len(source))
        key = jax.random.key(seed)
        variables = distributed.replicate(network.variables, mesh)
        state = distributed.replicate(init(key, variables), mesh)
        kept = variables["params"] if training.frozen else {}
        per_epoch, losses, late = len(source) // settled.batch_size, [], None
        crops = _host_crops(training, network.size)
        batches = make_batches(source, settled.batch_size, seed=seed, crops=crops, mesh=mesh)
        with closing(batches):
            for number in range(1, settled.steps + 1):
                numbers = (np.float32(rates[number - 1]), np.float32(weight_decay))
                state, loss = step(state, kept, batches.next(), key, np.int32(number), *numbers)
                if late is not None:  # fetched while the device is at work on this step
                    losses.append(float(late))
                late = loss
                last = number == settled.steps
                if last or (every and number % (every * per_epoch) == 0):
                    mean = float(np.mean([*losses, float(loss)][-per_epoch:]))
                    tree = {"params": state.params.get("net", kept), "batch_stats": state.stats}
                    yield Classifier(tree, state.params["head"], mean if mean < np.inf else None)

    def fit(source: Source, *, lr: float, weight_decay: float, seed: int) -> Classifier:
        [last] = epochs(source, lr=lr, weight_decay=weight_decay, seed=seed)
        return last

    logits = partial(_logits, network, predict, mesh)
    return Tuner(epochs, fit, logits)


def check_labels(source: Source) -> None:
    """Raise ValueError unless all images have labels, of two classes or more."""
    labels = source.labels
    without = int(np.sum(labels < 0))
    if without:
        raise ValueError(f"{without} of {len(labels)} training images have no label")
    if len(np.unique(labels)) < 2:
        raise ValueError("the training images are of one class, a classifier needs two or more")


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracies in percent.

    Args:
        logits: [n, c].
        labels: [n] in [0, c).

    Returns:
        "top1", "top5" (100 if there are five classes or fewer), and "mean_per_class", the mean over
        the classes of ``labels`` of the top-1 accuracy on each.
    """
    hit = np.argsort(-logits, axis=1, kind="stable")[:, :5] == labels[:, None]
    per_class = [hit[labels == c, 0].mean() for c in np.unique(labels)]
    return {
        "top1": 100 * float(hit[:, 0].mean()),
        "top5": 100 * float(hit.any(axis=1).mean()),
        "mean_per_class": 100 * float(np.mean(per_class)),
    }


def described(
    training: Training, lr: float, weight_decay: float, num_examples: int, num_devices: int
) -> dict[str, Any]:
    """The settings in effect on a set of this size, for the details of a row."""
    settled = settle(training, num_examples, num_devices)
    rate = {"lr": lr, "peak_lr": peak_lr(settled, lr), "weight_decay": weight_decay}
    cut = {"batch_size_asked": training.batch_size, "training_images": num_examples}
    return settled._asdict() | rate | (cut if settled.batch_size < training.batch_size else {})


def _logits(
    network: Network, predict: Callable, mesh: Mesh, classifier: Classifier, source: Source
) -> np.ndarray:
    images = source.images(network.size)
    # Pictures of many sizes are cut to the middle when they are read.
    crop = network.crop if source.one_size else 0.0
    block, rows = -(-BLOCK // mesh.size) * mesh.size, []
    for first in range(0, len(images), block):
        part = images[first : first + block]
        filled = np.zeros((block, *part.shape[1:]), part.dtype)
        filled[: len(part)] = part
        found = predict(classifier._replace(loss=None), distributed.shard(filled, mesh), crop)
        rows.append(np.asarray(found)[: len(part)])
    return np.concatenate(rows)


def _make_step(network: Network, training: Training, num_classes: int, mesh: Mesh) -> Callable:
    """The jitted ``(state, kept, batch, key, number, rate, weight_decay) -> (state, loss)``."""
    axis = distributed.DATA_AXIS
    moving = training.moving_statistics or not training.frozen

    def step(
        state: _State,
        kept: Any,
        batch: dict[str, Any],
        key: Array,
        number: Array,
        rate: Array,
        weight_decay: Array,
    ) -> tuple[_State, Array]:
        view_key, net_key, mix_key = jax.random.split(jax.random.fold_in(key, number), 3)
        images = _views(view_key, batch, training, network)
        on = 1 - training.smoothing
        target = jax.nn.one_hot(batch["label"], num_classes) * on + training.smoothing / num_classes
        if training.mixup or training.cutmix:
            alphas = {"mixup": training.mixup, "cutmix": training.cutmix}
            others = _mirrored(images, axis), _mirrored(target, axis)
            images, target = mix(mix_key, (images, target), others, **alphas)

        def objective(params: Any) -> tuple[Array, Any]:
            variables = {"params": params.get("net", kept), "batch_stats": state.stats}
            keys = jax.vmap(jax.random.fold_in, (None, 0))(net_key, batch["index"])
            found = network.apply(variables, images, train=moving, axis_name=axis, keys=keys)
            log_p = jax.nn.log_softmax(_linear(params["head"], found[0]))
            return -jnp.mean(jnp.sum(target * log_p, axis=1)), found[1]["batch_stats"]

        (loss, stats), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        grads, loss = collectives.mean((grads, loss), axis)
        optimiser = _optimiser(training, rate, weight_decay)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        head = jax.tree.map(lambda u: u * training.head_lr, updates["head"])
        params = optax.apply_updates(state.params, {**updates, "head": head})
        return _State(params, stats, opt_state), loss

    each, split = P(), P(axis)
    specs = (each, each, split, each, each, each, each)
    return jax.jit(distributed.spmd(step, mesh, specs, (each, each)))


def _mirrored(x: Array, axis: str) -> Array:
    """Of each example of the whole batch the one as far from its end as this from its beginning."""
    first = collectives.device_index(axis) * len(x)
    return lax.dynamic_slice_in_dim(collectives.gather(x, axis)[::-1], first, len(x))


def _optimiser(training: Training, rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    return optim.optimiser(
        training.optimiser,
        lambda _: rate,
        weight_decay=lambda _: weight_decay,
        momentum=training.momentum,
        clip_norm=0.0,
        nesterov=training.nesterov,
    )


def _init(
    network: Network, training: Training, num_classes: int, key: Array, variables: Any
) -> _State:
    shape = (1, network.size, network.size, network.channels)
    image = jax.ShapeDtypeStruct(shape, jnp.float32)
    h, _ = jax.eval_shape(partial(network.apply, train=False), variables, image)
    shape, std = (h.shape[1], num_classes), training.head_std
    kernel = std * jax.random.normal(key, shape) if std else jnp.zeros(shape)
    params = {"head": {"kernel": kernel, "bias": jnp.zeros(num_classes)}}
    if not training.frozen:
        params["net"] = variables["params"]
    opt_state = _optimiser(training, 0.0, 0.0).init(params)
    return _State(params, variables["batch_stats"], opt_state)


def _predict(network: Network, classifier: Classifier, images: Array, crop: float) -> Array:
    x = resize_images(images, Inputs(network.size, network.channels, crop=crop))
    h, _ = network.apply(classifier.variables, x, train=False)
    return _linear(classifier.head, h)


def _linear(head: dict[str, Array], h: Array) -> Array:
    return jnp.matmul(h, head["kernel"], precision=lax.Precision.HIGHEST) + head["bias"][None]


def _shape_of_rate(settled: Training, num_examples: int) -> np.ndarray:
    """[steps] the rate of each step over the largest one."""
    per_epoch = num_examples // settled.batch_size
    shape = schedules.learning_rate(
        settled.schedule,
        1.0,
        warmup_steps=min(round(settled.warmup * per_epoch), settled.steps - 1),
        total_steps=settled.steps,
        milestones=tuple(round(epoch * per_epoch) for epoch in settled.milestones),
        gamma=settled.gamma,
    )
    return np.asarray(jax.jit(jax.vmap(shape))(np.arange(settled.steps, dtype=np.int32)))


def _host_crops(training: Training, size: int) -> Crops:
    """What the host cuts of pictures that are not sent whole."""
    views = () if training.augment == "pad" else (Crop(size, training.crop_scale, RATIO),)
    return Crops(views, (), size)


def _views(key: Array, batch: dict[str, Any], training: Training, network: Network) -> Array:
    """[b, s, s, c] in [0, 1]; each drawn by the example's place."""
    images, scale, kind = batch["input"], training.crop_scale, training.augment
    if isinstance(images, dict):
        images, scale = images["views"][:, 0], (1.0, 1.0)  # cropped on the host
    if images.shape[3] > network.channels:
        raise ValueError(
            f"the network takes images of {network.channels} channel, these have {images.shape[3]}"
        )
    hyper = {"crop_scale": tuple(scale), "flip": training.flip, "erasing": training.erasing}
    if kind == "simclr":
        recipe = recipes.simclr(size=network.size, **hyper)
    else:
        recipe = recipes.policy(size=network.size, **hyper, crop=kind, pad=training.pad)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["index"])
    views = jax.vmap(lambda own, image: recipe(own, to_float(image)))(keys, images)
    return jnp.broadcast_to(views, (*views.shape[:3], network.channels))
