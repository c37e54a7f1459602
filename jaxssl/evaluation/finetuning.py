"""Train a linear classifier on a backbone, which is fine-tuned or frozen."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax.typing import Collection, VariableDict
from jax import Array, lax
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxssl import collectives, distributed
from jaxssl.augment import recipes
from jaxssl.augment.mix import mix
from jaxssl.augment.views import Inputs, match_channels, standardise, to_float
from jaxssl.components import Settings
from jaxssl.data.batches import make_batches
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.data.splits import Source
from jaxssl.evaluation.features import extract
from jaxssl.evaluation.protocol import check_labels, rank, top1_top5
from jaxssl.methods.base import Batch
from jaxssl.models import encoder as networks
from jaxssl.pretrained.encoder import PretrainedEncoder
from jaxssl.training import optim
from jaxssl.training.config import schedules

RATIO = (3 / 4, 4 / 3)  # range of a random resized crop's aspect ratio


class Training(NamedTuple):
    """Settings of a classifier's training. Either ``epochs`` or ``steps`` must be 0.

    Attributes:
        optimiser: name, see `jaxssl.training.optim.optimiser`. Only matrices have weight decay.
        momentum: of sgd, lars and larc.
        nesterov: use Nesterov momentum.
        batch_size: over all devices, at most the size of the training set.
        epochs: length of the training. The last incomplete batch of each epoch is dropped.
        steps: length of the training in batches.
        schedule: name, see `jaxssl.training.config.schedules.learning_rate`.
        warmup: epochs.
        milestones: epochs at which the schedule "step" lowers the learning rate.
        gamma: factor of the schedule "step".
        lr_batch: the peak learning rate is lr * batch_size / lr_batch, or lr if this is 0.
        head_lr: learning rate of the linear layer relative to the backbone's.
        head_std: standard deviation of the linear layer's initial kernel. The bias starts at 0.
        frozen: train the linear layer only, on features in evaluation mode.
        moving_statistics: with a frozen backbone, BatchNorm normalises by the batch and updates its
            running statistics, as in some released code. The parameters stay fixed.
        augment: "resized" (random resized crop and flip), "pad" (pad, crop and flip) or "simclr"
            (random resized crop, flip and colour distortion).
        crop_scale: range of the area that a random resized crop keeps, in (0, 1].
        pad: pixels on each side.
        flip: probability of a horizontal flip.
        blur: probability of a Gaussian blur, for "simclr".
        erasing: probability of erasing a box.
        mixup: both parameters of mixup's Beta distribution, 0 for no mixup.
        cutmix: the same for CutMix. With both, each step draws one of the two.
        smoothing: label smoothing, in [0, 1).
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
    blur: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0


def preset(lr: object, weight_decay: object, **training: Any) -> Settings:
    """Return a protocol's preset. ``lr`` and ``weight_decay`` may be tuples to choose from."""
    return {"training": Training(**training), "lr": lr, "weight_decay": weight_decay}


class Classifier(NamedTuple):
    """A backbone and a linear layer, with logits = features @ kernel + bias.

    Attributes:
        variables: {"params", "batch_stats"} of the backbone.
        head: {"kernel" [f, c], "bias" [c]}.
        loss: mean over the epoch that has just ended, None if it was not finite.
    """

    variables: VariableDict
    head: dict[str, Array]
    loss: float | None = None


class Tuner(NamedTuple):
    """Functions that train and evaluate classifiers on one encoder. Each compiles once.

    Attributes:
        epochs: ``(source, *, lr, weight_decay, seed, every) -> Iterator[Classifier]``: the
            classifier after every ``every`` epochs (0: never) and at the end.
        fit: ``(source, *, lr, weight_decay, seed) -> Classifier`` at the end.
        logits: ``(classifier, source) -> [n, c]`` of all images, not augmented.
    """

    epochs: Callable[..., Iterator[Classifier]]
    fit: Callable[..., Classifier]
    logits: Callable[[Classifier, Source], np.ndarray]


class _State(NamedTuple):
    params: Any  # trained parameters of "head", and of "net" unless the backbone is frozen
    stats: Collection  # BatchNorm statistics of the backbone
    opt_state: optax.OptState


class Hyper(NamedTuple):
    """Numbers that a compiled step takes as arguments, so that a search compiles once."""

    step: Array | np.int32  # number of the step, the first is 1
    lr: Array | np.float32  # learning rate of this step
    weight_decay: Array | np.float32


def make_tuner(
    pretrained: PretrainedEncoder,
    training: Training,
    num_classes: int,
    mesh: Mesh,
    data: Settings | None = None,
) -> Tuner:
    """Build the functions that train a linear layer on a backbone, and the backbone unless frozen.

    Batches are split over the mesh. Every random draw is keyed by seed, step and the index of the
    example, so that the same seed gives the same classifier on any number of devices that divide
    the batch.

    Args:
        pretrained: the backbone to start from. Its variables are not modified.
        training: the settings.
        num_classes: c, >= 2.
        mesh: the devices.
        data: the group `config.data`. Its "cache" and "workers" say how images are read, see
            `jaxssl.data.batches.make_plan`.
    """
    reading = {key: data[key] for key in ("cache", "workers") if data and key in data}
    step = _make_step(pretrained, training, num_classes, mesh)
    whole = distributed.replicated_sharding(mesh)
    init = jax.jit(partial(_init, pretrained, training, num_classes), out_shardings=whole)

    @partial(jax.jit, static_argnames="crop")
    def predict(classifier: Classifier, images: Array, *, crop: float) -> Array:
        images = pretrained.inputs._replace(crop=crop).prepare(images)
        params, stats = classifier.variables["params"], classifier.variables["batch_stats"]
        h = networks.features(pretrained.encoder, params, stats, images)
        return _linear(classifier.head, h)

    def epochs(
        source: Source, *, lr: float, weight_decay: float, seed: int, every: int = 0
    ) -> Iterator[Classifier]:
        check_labels(source)
        resolved = resolve(training, len(source), mesh.size)
        rates = learning_rates(resolved, lr, len(source))
        key = jax.jit(lambda: jax.random.key(seed), out_shardings=whole)()
        variables = distributed.replicate(pretrained.variables["net"], mesh)
        state = init(key, variables)
        frozen = variables["params"] if training.frozen else {}
        per_epoch, losses = len(source) // resolved.batch_size, []
        crops = _host_crops(training, pretrained.inputs.size)
        options = {"seed": seed, "crops": crops, "mesh": mesh, **reading}
        batches = make_batches(source, resolved.batch_size, **options)
        with closing(batches):  # pyright: ignore[reportArgumentType]  (a field, not a method)
            for number, rate in enumerate(rates, start=1):
                hyper = Hyper(np.int32(number), np.float32(rate), np.float32(weight_decay))
                state, loss = step(state, frozen, batches.next(), key, hyper)
                losses.append(loss)
                # The host waits for the previous step only, so that the device stays busy.
                jax.block_until_ready(losses[-2:-1])
                is_last = number == resolved.steps
                if is_last or (every and number % (every * per_epoch) == 0):
                    mean = float(np.mean(jax.device_get(losses[-per_epoch:]), dtype=np.float64))
                    net = {"params": state.params.get("net", frozen), "batch_stats": state.stats}
                    loss = mean if np.isfinite(mean) else None
                    yield Classifier(net, state.params["head"], loss)

    def fit(source: Source, *, lr: float, weight_decay: float, seed: int) -> Classifier:
        return list(epochs(source, lr=lr, weight_decay=weight_decay, seed=seed))[-1]

    def logits(classifier: Classifier, source: Source) -> np.ndarray:
        # Images of different sizes are already centre-cropped when they are read.
        crop = pretrained.inputs.crop if source.one_size else 0.0
        images = source.images(*pretrained.inputs.resizing)
        return extract(images, partial(predict, crop=crop), classifier._replace(loss=None), mesh)

    return Tuner(epochs, fit, logits)


def accuracies(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute top-1, top-5 and mean per-class accuracy in percent from logits.

    Args:
        logits: [n, c]. A row that is not finite counts as a wrong prediction.
        labels: [n] in [0, c).

    Returns:
        "top1", "top5" (100 for five classes or fewer), and "mean_per_class", the mean over the
        classes of ``labels`` of the top-1 accuracy on each.
    """
    ranked = rank(logits)
    ranked[~np.isfinite(logits).all(axis=1)] = -1  # no class
    per_class = [np.mean(ranked[labels == c, 0] == c) for c in np.unique(labels)]
    return top1_top5(ranked, labels) | {"mean_per_class": 100 * float(np.mean(per_class))}


def resolve(training: Training, num_examples: int, num_devices: int) -> Training:
    """Return the settings with batch size and steps that suit ``num_examples`` training images.

    The batch size is at most the number of examples and a multiple of the number of devices.

    Raises:
        ValueError: unless exactly one of epochs and steps is positive, or if a batch has fewer
            examples than the number of devices.
    """
    if (training.epochs > 0) == (training.steps > 0):
        raise ValueError(
            f"either epochs or steps must be positive, got epochs={training.epochs} and "
            f"steps={training.steps}"
        )
    batch = min(training.batch_size, num_examples)
    if batch < num_devices:
        raise ValueError(
            f"batches of {batch} training images are too small for {num_devices} devices; use "
            "fewer devices"
        )
    batch -= batch % num_devices
    steps = training.steps or max(1, round(training.epochs * (num_examples // batch)))
    return training._replace(batch_size=batch, steps=steps)


def peak_lr(training: Training, lr: float) -> float:
    """Return the largest learning rate of resolved settings."""
    return lr * training.batch_size / training.lr_batch if training.lr_batch else lr


def learning_rates(resolved: Training, lr: float, num_examples: int) -> np.ndarray:
    """Return the learning rate of each training step, [steps] float32."""
    per_epoch = num_examples // resolved.batch_size
    relative = schedules.learning_rate(
        resolved.schedule,
        1.0,
        warmup_steps=min(round(resolved.warmup * per_epoch), resolved.steps - 1),
        total_steps=resolved.steps,
        milestones=tuple(round(epoch * per_epoch) for epoch in resolved.milestones),
        gamma=resolved.gamma,
    )
    steps = np.arange(resolved.steps, dtype=np.int32)
    return peak_lr(resolved, lr) * np.asarray(jax.jit(jax.vmap(relative))(steps))


def make_optimiser(training: Training, hyper: Hyper) -> optax.GradientTransformation:
    """Build an optimiser with a constant learning rate and weight decay, which may be traced."""
    optimiser = optim.optimiser(
        training.optimiser,
        lambda _: jnp.asarray(hyper.lr),
        weight_decay=lambda _: jnp.asarray(hyper.weight_decay),
        momentum=training.momentum,
        clip_norm=0.0,
        nesterov=training.nesterov,
    )
    mask = {"head": True} | ({} if training.frozen else {"net": False})
    return optax.chain(optimiser, optax.masked(optax.scale(training.head_lr), mask))


def summarise(
    training: Training, lr: float, weight_decay: float, num_examples: int, num_devices: int
) -> dict[str, Any]:
    """Return the settings used to train on ``num_examples`` images, as details of a results row."""
    resolved = resolve(training, num_examples, num_devices)
    rates = {"lr": lr, "peak_lr": peak_lr(resolved, lr), "weight_decay": weight_decay}
    cut = {"batch_size_asked": training.batch_size, "training_images": num_examples}
    return resolved._asdict() | rates | (cut if resolved.batch_size < training.batch_size else {})


def _make_step(
    pretrained: PretrainedEncoder, training: Training, num_classes: int, mesh: Mesh
) -> Callable[..., tuple[_State, Array]]:
    """Build the jitted step. Its argument ``frozen`` has the parameters of a frozen backbone."""
    axis = distributed.DATA_AXIS
    train_mode = training.moving_statistics or not training.frozen

    def step(
        state: _State, frozen: object, batch: Batch, key: Array, hyper: Hyper
    ) -> tuple[_State, Array]:
        view_key, net_key, mix_key = jax.random.split(jax.random.fold_in(key, hyper.step), 3)
        images = _views(view_key, batch, training, pretrained.inputs)
        confidence = 1 - training.smoothing
        uniform = training.smoothing / num_classes
        target = jax.nn.one_hot(batch["label"], num_classes) * confidence + uniform
        if training.mixup or training.cutmix:
            alphas = {"mixup": training.mixup, "cutmix": training.cutmix}
            others = _reversed(images, axis), _reversed(target, axis)
            images, target = mix(mix_key, (images, target), others, **alphas)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(net_key, batch["index"])

        def objective(params: Collection) -> tuple[Array, Collection]:
            x, stats = standardise(images, pretrained.inputs), state.stats
            net = params.get("net", frozen)
            if train_mode:
                h, stats = networks.features_in_training(
                    pretrained.encoder, net, stats, x, axis_name=axis, keys=keys
                )
            else:
                h = networks.features(pretrained.encoder, net, stats, x)
            log_p = jax.nn.log_softmax(_linear(params["head"], h))
            return -jnp.mean(jnp.sum(target * log_p, axis=1)), stats

        (loss, stats), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        grads, loss = collectives.mean((grads, loss), axis)
        optimiser = make_optimiser(training, hyper)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        return _State(optax.apply_updates(state.params, updates), stats, opt_state), loss

    each, split = P(), P(axis)
    return jax.jit(distributed.spmd(step, mesh, (each, each, split, each, each), (each, each)))


def _reversed(x: Array, axis: str) -> Array:
    """Reverse the order of the whole batch, and return this device's rows of the result."""
    first = collectives.device_index(axis) * len(x)
    return lax.dynamic_slice_in_dim(collectives.gather(x, axis)[::-1], first, len(x))


def _init(
    pretrained: PretrainedEncoder,
    training: Training,
    num_classes: int,
    key: Array,
    net: VariableDict,
) -> _State:
    """Draw the linear layer, and return the state before the first step."""
    inputs, stats = pretrained.inputs, net["batch_stats"]
    image = jax.ShapeDtypeStruct((1, inputs.size, inputs.size, inputs.channels), jnp.float32)
    features = partial(networks.features, pretrained.encoder)
    h = jax.eval_shape(features, net["params"], stats, image)
    kernel = training.head_std * jax.random.normal(key, (h.shape[1], num_classes), jnp.float32)
    head = {"kernel": kernel, "bias": jnp.zeros(num_classes, jnp.float32)}
    params = {"head": head} | ({} if training.frozen else {"net": net["params"]})
    zero = jnp.zeros(())  # The numbers do not affect the optimiser's initial state.
    return _State(params, stats, make_optimiser(training, Hyper(zero, zero, zero)).init(params))


def _linear(head: dict[str, Array], h: Array) -> Array:
    return jnp.matmul(h, head["kernel"], precision=lax.Precision.HIGHEST) + head["bias"][None]


def _host_crops(training: Training, size: int) -> Crops:
    """Return the crops that the host cuts from images of different sizes."""
    views = () if training.augment == "pad" else (Crop(size, training.crop_scale, RATIO),)
    return Crops(views, (), size)


def _views(key: Array, batch: Batch, training: Training, inputs: Inputs) -> Array:
    """Draw one augmented view of each image, [b, s, s, c] in [0, 1]."""
    images, scale, augment = batch["input"], training.crop_scale, training.augment
    if isinstance(images, dict):  # The images were cropped on the host.
        images, scale = images["views"][:, 0], (1.0, 1.0)
    settings = {"crop_scale": tuple(scale), "flip": training.flip, "erasing": training.erasing}
    if augment == "simclr":
        recipe = recipes.simclr(size=inputs.size, **settings, blur=training.blur)
    else:
        recipe = recipes.policy(size=inputs.size, **settings, crop=augment, pad=training.pad)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["index"])
    views = jax.vmap(lambda key, image: recipe(key, to_float(image)))(keys, images)
    return match_channels(views, inputs.channels)
