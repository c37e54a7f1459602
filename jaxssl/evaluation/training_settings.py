"""Settings of a classifier's training: batch size, steps, optimiser and learning rates."""

from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from jaxssl.training import optim
from jaxssl.training.config import schedules


class Training(NamedTuple):
    """Settings of a classifier's training. Set either ``epochs`` or ``steps``. The other is 0.

    Attributes:
        optimiser: name, see `jaxssl.training.optim.optimiser`. Only matrices have weight decay.
        momentum: of sgd, lars and larc.
        nesterov: use Nesterov momentum.
        batch_size: over all devices, at most the size of the training set.
        epochs: length of the training. The last incomplete batch of each epoch is dropped.
        steps: length of the training in batches.
        schedule: name, see `jaxssl.training.config.schedules.learning_rate`.
        warmup: epochs.
        milestones: epochs at which the schedule "step" lowers the rate.
        gamma: factor of the schedule "step".
        lr_batch: the peak rate is lr * batch_size / lr_batch, or 0 for lr without scaling.
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
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0


def resolve(training: Training, num_examples: int, num_devices: int) -> Training:
    """Return training settings with batch size and steps for a training set of this size.

    The batch size is at most the number of examples and a multiple of the number of devices.

    Raises:
        ValueError: if there are fewer examples than devices, or not one of epochs and steps is
            positive.
    """
    if (training.epochs > 0) == (training.steps > 0):
        raise ValueError(
            f"either epochs or steps must be positive, got epochs={training.epochs} and "
            f"steps={training.steps}"
        )
    if num_examples < num_devices:
        raise ValueError(f"{num_examples} training images are too few for {num_devices} devices")
    batch = min(training.batch_size, num_examples)
    batch = max(1, batch // num_devices) * num_devices
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


def make_optimiser(training: Training, lr: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Build the optimiser of one step. Learning rate and weight decay may be traced."""
    return optim.optimiser(
        training.optimiser,
        lambda _: lr,
        weight_decay=lambda _: weight_decay,
        momentum=training.momentum,
        clip_norm=0.0,
        nesterov=training.nesterov,
    )


def summarise(
    training: Training, lr: float, weight_decay: float, num_examples: int, num_devices: int
) -> dict[str, Any]:
    """Return the settings in effect on a training set of this size, for a results row."""
    resolved = resolve(training, num_examples, num_devices)
    rate = {"lr": lr, "peak_lr": peak_lr(resolved, lr), "weight_decay": weight_decay}
    cut = {"batch_size_asked": training.batch_size, "training_images": num_examples}
    return resolved._asdict() | rate | (cut if resolved.batch_size < training.batch_size else {})
