"""Recipes: `(**hyper) -> (key, image) -> view`, named by `augment.name` in a config.

The image is [h, w, c], float in [0, 1]; the view is [size, size, c], in the same range. Every
recipe has a ``size``: evaluation resizes images to it. A recipe draws once, all its uniform numbers
together: compiling the random generator takes longer than compiling the operations.

Recipes of `KINDS` are of other examples than images alone: "graph" is `(keys, row of graphs) ->
row`; "video" is of clips [t, h, w, c]; "clip" is of images that have captions.
"""

from collections.abc import Callable, Sequence

import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.augment import colour, policies
from jaxssl.augment import graph as graph_ops
from jaxssl.augment import image as ops
from jaxssl.augment import video as clips

Recipe = Callable[[Array, Array], Array]
KINDS = {"graph": "graph", "clip": "image_text", "video": "video"}
POLICIES = ("none", "autoaugment_cifar", "autoaugment_imagenet", "randaugment")


def simclr(
    *,
    size: int = 32,
    crop_scale: tuple[float, float] = (0.08, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    jitter: float = 0.8,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    grayscale: float = 0.2,
    blur: float = 0.0,
    blur_kernel: int = 0,
    blur_sigma: tuple[float, float] = (0.1, 2.0),
    solarize: float = 0.0,
    erasing: float = 0.0,
) -> Recipe:
    """SimCLR's: random resized crop, flip, colour jitter, grayscale; blur and more when asked.

    Args:
        size: pixels a side of a view.
        crop_scale: smallest and largest share of the area that the crop keeps; (1, 1) keeps all
            of the image, of any shape.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of mirroring left and right.
        jitter: probability of the four changes of colour, in random order.
        brightness: strength, the range of the factor about 1.
        contrast: likewise.
        saturation: likewise.
        hue: strength, the range of the shift, a share of the circle.
        grayscale: probability.
        blur: probability of a Gaussian blur.
        blur_kernel: its taps along a side, odd; 0 is about a tenth of ``size``, at least 3.
        blur_sigma: range of its standard deviation, in pixels.
        solarize: probability of inverting the upper half of the values.
        erasing: probability of erasing a box.

    Raises:
        ValueError: on a probability outside [0, 1].

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020,
        appendix A; solarisation after Grill et al., Bootstrap Your Own Latent, 2020.
    """
    _check(flip=flip, jitter=jitter, grayscale=grayscale)
    _check(blur=blur, solarize=solarize, erasing=erasing)
    kernel = blur_kernel or max(3, size // 20 * 2 + 1)
    strengths = dict(brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (20,))
        image = _random_crop(u[:4], image, size, crop_scale, crop_ratio)
        image = ops.random_flip(u[4], image, flip)
        image = jnp.moveaxis(image, 2, 0)
        # What never happens is not compiled.
        if jitter:
            image = colour.random_jitter(u[5:11], image, **strengths, probability=jitter)
        if grayscale:
            image = colour.random_grayscale(u[11], image, grayscale)
        if blur:
            image = colour.random_blur(u[12:14], image, kernel, tuple(blur_sigma), blur)
        if solarize:
            image = colour.random_solarize(u[14], image, solarize)
        image = jnp.moveaxis(image, 0, 2)
        return ops.random_erase(u[15:], image, erasing) if erasing else image

    return view


def policy(
    *,
    size: int = 32,
    crop: str = "pad",
    pad: int = 4,
    crop_scale: tuple[float, float] = (0.2, 1.0),
    flip: float = 0.5,
    policy: str = "none",
    num_ops: int = 2,
    magnitude: float = 10,
    erasing: float = 0.0,
) -> Recipe:
    """For supervised training: crop, flip, a learned or random policy, random erasing.

    Args:
        size: pixels a side of a view.
        crop: "pad" resizes to ``size`` if need be, pads by reflection and crops; "resized" is the
            random resized crop.
        pad: pixels on each side.
        crop_scale: smallest and largest share of the area that the resized crop keeps.
        flip: probability of mirroring left and right.
        policy: "none", "autoaugment_cifar", "autoaugment_imagenet" or "randaugment".
        num_ops: operations of RandAugment, one after the other.
        magnitude: of RandAugment, in [0, 10].
        erasing: probability of erasing a box.

    Raises:
        ValueError: on an unknown ``crop`` or ``policy``, a probability outside [0, 1], or a
            negative ``num_ops``.
    """
    if crop not in ("pad", "resized"):
        raise ValueError(f"crop is {crop!r}; expected 'pad' or 'resized'")
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")
    if num_ops < 0:
        raise ValueError(f"num_ops is {num_ops}; expected 0 or more")
    _check(flip=flip, erasing=erasing)

    def cropped(u: Array, image: Array) -> Array:
        if crop == "resized":
            return _random_crop(u, image, size, crop_scale)
        return ops.random_pad_crop(u[:2], ops.resize(image, size), pad)

    def view(key: Array, image: Array) -> Array:
        u = jax.random.uniform(key, (15 + 2 * num_ops,))
        image = jnp.moveaxis(ops.random_flip(u[4], cropped(u[:4], image), flip), 2, 0)
        if policy == "randaugment":
            image = policies.rand_augment(u[15:].reshape(num_ops, 2), image, magnitude)
        elif policy != "none":
            table = policies.CIFAR if policy == "autoaugment_cifar" else policies.IMAGENET
            image = policies.auto_augment(u[5:10], image, table)
        image = jnp.moveaxis(image, 0, 2)
        return ops.random_erase(u[10:15], image, erasing) if erasing else image

    return view


def digits(
    *,
    size: int = 16,
    crop_scale: tuple[float, float] = (0.6, 1.0),
    degrees: float = 15.0,
    shear: float = 0.2,
    zoom: float = 0.1,
    shift: float = 0.1,
    jitter: float = 0.4,
    noise: float = 0.05,
) -> Recipe:
    """For handwritten digits: crop, small affine map, brightness and contrast, noise; no flip.

    Args:
        size: pixels a side of a view.
        crop_scale: share of the area that the random resized crop keeps.
        degrees: range of the rotation, plus and minus.
        shear: range of the shear.
        zoom: range of the zoom about 1.
        shift: range of the shift, as a share of the side.
        jitter: strength of brightness and contrast.
        noise: standard deviation of the noise.
    """

    def view(key: Array, image: Array) -> Array:
        shape = (size, size, image.shape[2])
        u = jax.random.uniform(key, (11 + size * size * image.shape[2],))
        image = _random_crop(u[:4], image, size, crop_scale)
        image = ops.random_affine(
            u[4:9], image, degrees=degrees, shear=shear, zoom=zoom, shift=shift
        )
        planes = colour.random_brightness_contrast(u[9:11], jnp.moveaxis(image, 2, 0), jitter)
        return ops.random_noise(u[11:].reshape(shape), jnp.moveaxis(planes, 0, 2), noise)

    return view


def clip(
    *,
    size: int = 224,
    crop_scale: tuple[float, float] = (0.9, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Recipe:
    """CLIP's, of images with captions: a random resized crop that leaves nearly all of the image.

    Nothing is mirrored or changed in colour: a caption may speak of it. One of the captions is
    drawn for each view.

    Args:
        size: pixels a side of a view.
        crop_scale: smallest and largest share of the area that the crop keeps.
        crop_ratio: smallest and largest width / height of the crop.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021,
        2.4; the range of areas is OpenCLIP's.
    """

    def view(key: Array, image: Array) -> Array:
        return _random_crop(jax.random.uniform(key, (4,)), image, size, crop_scale, crop_ratio)

    return view


def video(
    *,
    size: int = 128,
    frames: int = 32,
    stride: int = 1,
    crop_scale: tuple[float, float] = (0.2, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    reverse: float = 0.0,
    jitter: float = 0.8,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    grayscale: float = 0.2,
    blur: float = 0.5,
    blur_kernel: int = 0,
    blur_sigma: tuple[float, float] = (0.1, 2.0),
) -> Recipe:
    """CoCLR's: a window of frames, then SimCLR's operations, each with one draw for all frames.

    The recipe is `(key, clip [t, h, w, c]) -> view [frames, size, size, c]`. Flow has no colours:
    it gets neither jitter, grayscale nor blur. Of grey clips only brightness and contrast jitter.

    Args:
        size: pixels a side of a view.
        frames: of a view; they follow one another in the clip, from a uniform place on.
        stride: frames from one to the next; 2 keeps every other one. Flow is not added up.
        crop_scale: smallest and largest share of the area that the crop keeps; (1, 1) keeps all
            of each frame, of any shape.
        crop_ratio: smallest and largest width / height of the crop.
        flip: probability of mirroring left and right.
        reverse: probability of playing the window backwards.
        jitter: probability of the four changes of colour, in random order.
        brightness: strength, the range of the factor about 1.
        contrast: likewise; about the mean of each frame.
        saturation: likewise.
        hue: strength, the range of the shift, a share of the circle.
        grayscale: probability.
        blur: probability of a Gaussian blur.
        blur_kernel: its taps along a side, odd; 0 is about a tenth of ``size``, at least 3.
        blur_sigma: range of its standard deviation, in pixels.

    Raises:
        ValueError: on a probability outside [0, 1], or fewer than one frame or step; when called,
            on a clip that is too short or has more than three channels.

    References:
        Han et al., Self-supervised Co-training for Video Representation Learning, 2020; the
        strengths are those of its released ``main_nce.py``, which are SimCLR's for small images.

    Differs from the released code: that leaves the colours of more than half of the views alone;
    its grayscale repeats one random channel; it draws the aspect ratio uniformly and resizes by a
    bicubic filter; it treats flow as RGB and keeps the sign of mirrored flow.
    """
    _check(flip=flip, reverse=reverse, jitter=jitter, grayscale=grayscale, blur=blur)
    if min(frames, stride) < 1:
        raise ValueError(f"frames is {frames}, stride {stride}; expected at least 1")
    kernel = blur_kernel or max(3, size // 20 * 2 + 1)

    def coloured(u: Array, frame: Array) -> Array:
        channels = frame.shape[2]
        colourful = channels == clips.RGB
        image = jnp.moveaxis(frame, 2, 0)
        if jitter:
            image = colour.random_jitter(
                u[:6],
                image,
                brightness=brightness,
                contrast=contrast,
                saturation=saturation if colourful else 0,
                hue=hue if colourful else 0,
                probability=jitter,
            )
        if grayscale and colourful:
            image = colour.random_grayscale(u[6], image, grayscale)
        if blur:
            image = colour.random_blur(u[7:9], image, kernel, tuple(blur_sigma), blur)
        return jnp.moveaxis(image, 0, 2)

    def view(key: Array, clip: Array) -> Array:
        channels = clip.shape[3]
        if channels not in (clips.GREY, clips.FLOW, clips.RGB):
            raise ValueError(f"a clip has 1, 2 or 3 channels, not {channels}")
        u = jax.random.uniform(key, (16,))
        clip = clips.random_window(u[0], clip, frames, stride=stride)
        # What never happens is not compiled.
        if reverse:
            clip = clips.random_reverse(u[1], clip, reverse)
        clip = clips.random_crop(u[2:6], clip, size, tuple(crop_scale), tuple(crop_ratio))
        if flip:
            clip = clips.random_flip(u[6], clip, flip)
        if channels == clips.FLOW:
            return clip
        return clips.per_frame(lambda frame: coloured(u[7:], frame), clip)

    return view


def graph(
    *,
    choices: tuple[str, ...] = ("drop_nodes", "subgraph"),
    drop: float = 0.1,
    perturb: float = 0.1,
    add: bool = True,
    mask: float = 0.1,
    keep: float = 0.8,
) -> graph_ops.Recipe:
    """GraphCL's: each graph is changed in one way, drawn from ``choices``; none changes nothing.

    Args:
        choices: some of "drop_nodes", "perturb_edges", "mask_attributes", "subgraph". GraphCL's
            random2 is the first and the last, random3 adds "perturb_edges", random4 is all.
        drop: share of the nodes that "drop_nodes" takes away with their edges.
        perturb: share of the edges that "perturb_edges" takes away.
        add: whether it puts as many random edges in their place.
        mask: share of the nodes whose features "mask_attributes" replaces by noise.
        keep: share of the nodes that "subgraph" keeps.

    Raises:
        ValueError: on an unknown choice, or a share outside [0, 1].

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, table 1 and appendix A. The
        released code differs: its "perturb_edges" adds none (``add=False``), its "subgraph" keeps a
        share of 0.2 and never looks beyond the neighbours of the first node, and nodes that have no
        edge left are dropped.
    """
    _check(drop=drop, perturb=perturb, mask=mask, keep=keep)
    unknown = sorted(set(choices) - set(graph_ops.CHOICES))
    if unknown:
        known = ", ".join(graph_ops.CHOICES)
        raise ValueError(f"augment.choices has {unknown[0]!r}; expected some of {known}")
    shares = {"drop": drop, "perturb": perturb, "add": add, "mask": mask, "keep": keep}
    return graph_ops.one_of(choices, **shares)


def _random_crop(
    u: Array,
    image: Array,
    size: int,
    scale: Sequence[float],
    ratio: Sequence[float] = (3 / 4, 4 / 3),
) -> Array:
    """The random resized crop; a scale of (1, 1) keeps the whole image."""
    if tuple(scale) == (1, 1):
        return ops.resize(image, size)
    box = ops.random_crop_box(u, image.shape, tuple(scale), tuple(ratio))
    return ops.crop_resize(image, box, size)


def _check(**probabilities: float) -> None:
    for name, value in probabilities.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; expected a probability or share in [0, 1]")
