"""Every operation of a recipe gets its own settings, and random numbers that no other one gets."""

import inspect

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxssl import components
from jaxssl.augment import colour, policies, recipes
from jaxssl.augment import graph as graph_ops
from jaxssl.augment import image as image_ops
from jaxssl.augment import video as video_ops
from jaxssl.augment.recipes._common import blur_kernel_side

pytestmark = pytest.mark.fast

SIZE, SCALE, RATIO, SIGMA = 8, (0.3, 0.7), (1.5, 2.5), (0.4, 1.1)
STRENGTHS = {"brightness": 0.11, "contrast": 0.12, "saturation": 0.13, "hue": 0.14}
CROP = {"size": SIZE, "scale": SCALE, "ratio": RATIO}
BLUR = {"kernel": 5, "sigma": SIGMA, "probability": 0.23}
COLOURS = {"jitter": 0.21, "grayscale": 0.22, "blur": 0.23, "blur_kernel": 5, "blur_sigma": SIGMA}
COLOURS |= STRENGTHS
VIEW = {"size": SIZE, "crop_scale": SCALE}
POLICY = {**VIEW, "crop": "pad", "pad": 3, "flip": 0.26, "erasing": 0.25}
FLIPPED, ERASED = {"probability": 0.26}, {"probability": 0.25}
PADDED = {"random_pad_crop": {"pad": 3}, "random_flip": FLIPPED}
CHANGED = {
    "random_jitter": {**STRENGTHS, "probability": 0.21},
    "random_grayscale": {"probability": 0.22},
    "random_blur": BLUR,
}
# For each recipe: its settings, the shape of an example, and the settings of each operation.
CASES = {
    "clip": ({**VIEW, "crop_ratio": RATIO}, (9, 12, 3), {"random_resized_crop": CROP}),
    "digits": (
        {**VIEW, "degrees": 7.0, "shear": 0.31, "zoom": 0.32, "shift": 0.33, "jitter": 0.34}
        | {"noise": 0.35},
        (9, 12, 1),
        {
            "random_resized_crop": {"size": SIZE, "scale": SCALE},
            "random_affine": {"degrees": 7.0, "shear": 0.31, "zoom": 0.32, "shift": 0.33},
            "random_brightness_contrast": {"strength": 0.34},
            "random_noise": {"stddev": 0.35},
        },
    ),
    "simclr": (
        {**VIEW, **COLOURS, "crop_ratio": RATIO, "flip": 0.26, "solarize": 0.24, "erasing": 0.25},
        (9, 12, 3),
        {
            "random_resized_crop": CROP,
            "random_flip": FLIPPED,
            **CHANGED,
            "random_solarize": {"probability": 0.24},
            "random_erase": ERASED,
        },
    ),
    "policy": (
        {**POLICY, "policy": "randaugment", "num_ops": 3, "magnitude": 7},
        (9, 12, 3),
        {**PADDED, "rand_augment": {"magnitude": 7}, "random_erase": ERASED},
    ),
    "policy resized": (
        {**POLICY, "crop": "resized", "policy": "autoaugment_cifar"},
        (9, 12, 3),
        {
            "random_resized_crop": {"size": SIZE, "scale": SCALE},
            "random_flip": FLIPPED,
            "auto_augment": {"table": policies.CIFAR},
            "random_erase": ERASED,
        },
    ),
    "policy imagenet": (
        {**POLICY, "policy": "autoaugment_imagenet"},
        (9, 12, 3),
        {**PADDED, "auto_augment": {"table": policies.IMAGENET}, "random_erase": ERASED},
    ),
    "video": (
        {**VIEW, **COLOURS, "crop_ratio": RATIO, "flip": 0.26, "reverse": 0.27}
        | {"frames": 2, "stride": 3},
        (7, 9, 12, 3),
        {
            "random_window": {"frames": 2, "stride": 3},
            "random_reverse": {"probability": 0.27},
            "random_resized_crop": CROP,
            "random_flip": FLIPPED,
            **CHANGED,
        },
    ),
}


def test_every_augmentation_recipe_has_a_test_case():
    assert {name.split()[0] for name in CASES} | {"graph"} == set(components.names("augment"))


@pytest.fixture
def calls(monkeypatch):
    """Replace the random operations; return what they are called with, by name."""
    seen = {}

    def spy(operation):
        def record(*args, **kwargs):
            bound = inspect.signature(operation).bind(*args, **kwargs)
            assert operation.__name__ not in seen
            u, image, *_ = bound.arguments.values()
            seen[operation.__name__] = (np.ravel(u), dict(list(bound.arguments.items())[2:]))
            if operation.__name__ == "random_resized_crop":
                *first, _, _, channels = image.shape
                return jnp.zeros((*first, SIZE, SIZE, channels))
            if operation.__name__ == "random_window":
                return image[: bound.arguments["frames"]]
            return image

        return record

    clip = components.module("augment", "clip")
    for module in (colour, image_ops, policies, video_ops, clip):
        for name, operation in vars(module).items():
            if name.startswith(("random_", "rand_", "auto_")) and name != "random_crop_box":
                monkeypatch.setattr(module, name, spy(operation))
    # Do not use vmap, so that the spied random numbers are concrete arrays.
    monkeypatch.setattr(video_ops, "per_frame", lambda operation, video: operation(video[0])[None])
    return seen


@pytest.mark.parametrize("case", CASES)
def test_each_operation_of_a_recipe_gets_its_settings_and_separate_random_numbers(case, calls):
    settings, shape, expected = CASES[case]
    getattr(recipes, case.split()[0])(**settings)(jax.random.key(0), jnp.zeros(shape))
    assert {name: values for name, (_, values) in calls.items()} == expected
    assert list(calls) == list(expected)  # operations run in this order
    numbers = np.concatenate([u for u, _ in calls.values()])
    assert len(set(numbers.tolist())) == len(numbers)


@pytest.mark.parametrize("num_ops", [0, 3])
def test_randaugment_draws_two_random_numbers_for_each_operation(num_ops, calls):
    settings = {**POLICY, "policy": "randaugment", "num_ops": num_ops}
    recipes.policy(**settings)(jax.random.key(0), jnp.zeros((9, 12, 3)))
    assert calls["rand_augment"][0].size == 2 * num_ops


def test_optical_flow_gets_no_colour_operations(calls):
    settings, _, _ = CASES["video"]
    recipes.video(**settings)(jax.random.key(0), jnp.zeros((7, 9, 12, 2)))
    assert set(calls) == {"random_window", "random_reverse", "random_resized_crop", "random_flip"}


def test_graph_recipe_passes_its_fractions_on(monkeypatch):
    monkeypatch.setattr(graph_ops, "one_of", lambda choices, **settings: (choices, settings))
    settings = {"drop": 0.1, "perturb": 0.2, "add": False, "mask": 0.3, "keep": 0.4}
    choices = ("subgraph", "drop_nodes")
    assert recipes.graph(choices=choices, **settings) == (choices, settings)


@pytest.mark.parametrize(
    ("size", "side"), [(8, 3), (20, 3), (32, 3), (48, 5), (96, 9), (128, 13), (224, 23)]
)
def test_automatic_blur_kernel_is_odd_and_a_tenth_of_the_side(size, side):
    assert blur_kernel_side(0, size) == side and blur_kernel_side(7, size) == 7
