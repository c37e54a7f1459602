"""Classifier training: equals float64 loops, on any number of devices; frozen backbones stay."""

import dataclasses
import json
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from file_cases import picture, unpack
from jax import numpy as jnp
from jax.sharding import PartitionSpec
from sklearn.metrics import recall_score, top_k_accuracy_score
from tune_cases import SIZE, digits, same, tiny_encoder

from jaxssl import distributed
from jaxssl.augment.mix import mix
from jaxssl.data.decoders.decoding import Crop, Crops
from jaxssl.evaluation import features, finetuning
from jaxssl.evaluation.finetuning import Training
from jaxssl.evaluation.protocol import EvalContext, Features, Images
from jaxssl.evaluation.protocols import linear
from jaxssl.pretrained.encoder import make_apply

PLAIN = {"crop_scale": (1.0, 1.0), "flip": 0.0}
CUTMIX = {"mixup": 0.0, "cutmix": 1.0}
HYPER = {"lr": 0.5, "weight_decay": 1e-3, "seed": 0}


@pytest.fixture(scope="module")
def train(data_dir):
    return digits(data_dir, 48)


@pytest.fixture(scope="module")
def frozen(mesh):
    """An encoder, settings and tuner of a linear layer; a batch holds all of `train`."""
    encoder = tiny_encoder()
    # Training views are not cropped centrally.
    encoder = encoder._replace(inputs=encoder.inputs._replace(crop=0.75))
    options = {"lr_batch": 96, "nesterov": True, "smoothing": 0.1, "head_lr": 2.0, **PLAIN}
    training = Training(batch_size=64, steps=5, frozen=True, **options)
    return encoder, training, finetuning.make_tuner(encoder, training, 10, mesh)


def features_of(encoder, source, crop=0.0):
    images = encoder.inputs._replace(crop=crop).prepare(source.images(SIZE))
    return np.asarray(make_apply(encoder)(encoder.variables["net"], images), np.float64)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_training_a_linear_layer_equals_a_float64_loop(frozen, train):
    """A batch is the whole set, so the order does not matter."""
    encoder, _, tuner = frozen
    h, n = features_of(encoder, train), len(train)
    target = 0.9 * np.eye(10)[train.labels] + 0.01
    kernel, bias, moved = np.zeros((6, 10)), np.zeros(10), [np.zeros((6, 10)), np.zeros(10)]
    for step in range(5):
        rate = 2 * 0.5 * (48 / 96) * (1 + np.cos(np.pi * step / 5)) / 2
        p = softmax(h @ kernel + bias)
        loss = -np.mean(np.sum(target * np.log(p), axis=1))
        gradients = h.T @ (p - target) / n + 1e-3 * kernel, (p - target).mean(axis=0)
        moved = [0.9 * v + g for v, g in zip(moved, gradients, strict=True)]
        kernel -= rate * (gradients[0] + 0.9 * moved[0])
        bias -= rate * (gradients[1] + 0.9 * moved[1])
    classifier = tuner.fit(train, **HYPER)
    np.testing.assert_allclose(classifier.head["kernel"], kernel, atol=1e-5)
    np.testing.assert_allclose(classifier.head["bias"], bias, atol=1e-5)
    assert classifier.loss == pytest.approx(loss, rel=1e-5)  # one batch is a whole epoch


def test_loss_of_training_that_diverges_is_none(frozen, train):
    _, _, tuner = frozen
    assert tuner.fit(train, **{**HYPER, "lr": 1e38}).loss is None


def test_frozen_backbone_keeps_parameters_and_batch_norm_statistics_to_the_bit(frozen, train):
    encoder, training, tuner = frozen
    classifier = tuner.fit(train, **HYPER)
    assert same(classifier.variables, encoder.variables["net"])
    state = finetuning._init(encoder, training, 10, jax.random.key(0), encoder.variables["net"])
    shapes = {np.shape(x) for x in jax.tree.leaves(state.opt_state)}
    assert shapes <= {(), (6, 10), (10,)}  # optimiser state of the linear layer only


def test_moving_statistics_option_updates_batch_norm_of_a_frozen_backbone(train, mesh):
    encoder = tiny_encoder()
    options = {"frozen": True, "moving_statistics": True, "schedule": "constant", **PLAIN}
    training = Training(batch_size=16, steps=2, **options)
    classifier = finetuning.make_tuner(encoder, training, 10, mesh).fit(train, **HYPER)
    assert same(classifier.variables["params"], encoder.variables["net"]["params"])
    assert not same(classifier.variables["batch_stats"], encoder.variables["net"]["batch_stats"])


def test_fine_tuned_logits_are_computed_from_central_crops(frozen, train, data_dir, monkeypatch):
    encoder, _, tuner = frozen
    classifier, test = tuner.fit(train, **HYPER), digits(data_dir, 50, "test")
    monkeypatch.setattr(features, "BLOCK", 32)
    kernel, bias = (np.asarray(classifier.head[name], np.float64) for name in ("kernel", "bias"))
    expected = features_of(encoder, test, crop=0.75) @ kernel + bias
    np.testing.assert_allclose(tuner.logits(classifier, test), expected, atol=1e-5)


TUNED = Training(batch_size=16, steps=4, head_std=0.1, warmup=1, mixup=0.8, cutmix=1.0, head_lr=2.0)


@pytest.fixture(scope="module")
def tuned(train):
    """Classifiers fine-tuned on one device and on eight, by number of devices."""
    classifiers, encoder, traced = {}, tiny_encoder(), []

    class Counted(type(encoder.encoder.net)):
        def __call__(self, *args, **options):
            traced.append(options["train"])
            return super().__call__(*args, **options)

    fields = {f.name: getattr(encoder.encoder.net, f.name) for f in dataclasses.fields(Counted)}
    net = Counted(**{k: v for k, v in fields.items() if k not in ("parent", "name")})
    counted = encoder._replace(encoder=encoder.encoder._replace(net=net))
    before = jax.tree.map(np.array, encoder.variables["net"])
    for devices in (1, 8):
        mesh = distributed.make_mesh(jax.devices()[:devices])
        tuner = finetuning.make_tuner(counted, TUNED, 10, mesh)
        classifiers[devices] = [tuner.fit(train, **HYPER)]
        once = len(traced)
        for changed in ({}, {"seed": 1}, {"lr": 0.1}, {"weight_decay": 0.5}):
            if devices == 1:
                classifiers[1].append(tuner.fit(train, **{**HYPER, **changed}))
        assert len(traced) == once, "a search compiles once"
    assert same(before, encoder.variables["net"]), "the network handed in has changed"
    return encoder, classifiers


@pytest.mark.long
def test_fine_tuning_gives_the_same_classifier_on_one_and_eight_devices(tuned):
    _, classifiers = tuned
    one, eight = classifiers[1][0], classifiers[8][0]
    assert one.loss == pytest.approx(eight.loss, rel=1e-4)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), one[:2], eight[:2])


def test_fine_tuned_classifier_depends_only_on_seed_learning_rate_and_decay(tuned):
    _, classifiers = tuned
    first, again, *others = classifiers[1]
    assert same(first[:2], again[:2])
    for other in others:
        assert not same(first.head, other.head)


def test_fine_tuning_changes_every_parameter_and_batch_norm_statistic(tuned):
    encoder, classifiers = tuned
    both = encoder.variables["net"], classifiers[1][0].variables
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, *both)))


def test_fine_tuning_yields_a_classifier_every_few_epochs_and_at_the_end(frozen, train, mesh):
    encoder, training, _ = frozen
    training = training._replace(batch_size=20, steps=0, epochs=5)
    tuner = finetuning.make_tuner(encoder, training, 10, mesh)
    classifiers = list(tuner.epochs(train, **HYPER, every=2))  # an epoch has two batches of 20
    assert len(classifiers) == 3
    assert same(classifiers[-1].head, tuner.fit(train, **HYPER).head)
    assert not same(classifiers[0].head, classifiers[1].head)


def test_fine_tuning_reports_the_mean_loss_of_an_epoch_and_the_seed_orders_batches(
    train, mesh, monkeypatch
):
    """The loss of a step is its number, and an epoch has three steps."""
    seeds, batches = [], SimpleNamespace(next=dict, close=lambda: None)
    state = finetuning._State({"head": {}}, {}, ())
    monkeypatch.setattr(finetuning, "_init", lambda *_: state)
    step = lambda state, *rest: (state, rest[3][0])  # noqa: E731
    monkeypatch.setattr(finetuning, "_make_step", lambda *_: step)
    make_batches = lambda *_, seed, **__: seeds.append(seed) or batches  # noqa: E731
    monkeypatch.setattr(finetuning, "make_batches", make_batches)
    tuner = finetuning.make_tuner(tiny_encoder(), Training(batch_size=16, epochs=2), 10, mesh)
    hyper = {"lr": 0.1, "weight_decay": 0.0, "seed": 4}
    assert [c.loss for c in tuner.epochs(train, **hyper, every=1)] == [2.0, 5.0]
    assert tuner.fit(train, **hyper).loss == 5.0
    assert seeds == [4, 4]


@pytest.mark.parametrize(
    ("augment", "views"),
    [("resized", (Crop(32, (0.2, 0.9), (3 / 4, 4 / 3)),)), ("pad", ())],  # as torchvision's crop
)
def test_host_crops_of_fine_tuning_have_the_scale_and_ratio_of_its_views(augment, views):
    training = Training(augment=augment, crop_scale=(0.2, 0.9))
    assert finetuning._host_crops(training, 32) == Crops(views, (), 32)


def test_fine_tuning_does_not_crop_host_crops_again():
    crops = np.random.default_rng(0).integers(0, 256, (4, 1, SIZE, SIZE, 1), np.uint8)
    training = Training(crop_scale=(0.1, 0.2), flip=0.0)
    batch = {"input": {"views": crops}, "index": np.arange(4)}
    views = jax.jit(lambda key: finetuning._views(key, batch, training, tiny_encoder().inputs))
    np.testing.assert_allclose(views(jax.random.key(0)), crops[:, 0] / 255, atol=1e-6)


def test_every_step_of_fine_tuning_draws_new_random_views(train, mesh):
    """Without training, only the views change the loss of a batch that holds all images."""
    training = Training(batch_size=48, epochs=4, frozen=True, head_std=0.5)
    tuner = finetuning.make_tuner(tiny_encoder(), training, 10, mesh)
    classifiers = tuner.epochs(train, lr=0.0, weight_decay=0.0, seed=0, every=1)
    losses = sorted(classifier.loss for classifier in classifiers)
    assert len(losses) == 4 and min(np.diff(losses)) > 1e-4


def test_mixup_pairs_images_with_the_reversed_batch_across_devices():
    mesh, x = distributed.make_mesh(), np.arange(16.0)
    split = PartitionSpec(distributed.DATA_AXIS)
    reverse = partial(finetuning._reversed, axis=distributed.DATA_AXIS)
    actual = jax.jit(distributed.spmd(reverse, mesh, (split,), split))(x)
    np.testing.assert_array_equal(actual, x[::-1])


def test_fine_tuning_reads_images_as_the_data_settings_say(mesh, data_dir, monkeypatch):
    seen = {}
    monkeypatch.setattr(finetuning, "make_batches", lambda *_, **how: seen.update(how) or 1 / 0)
    data = {"cache": "none", "workers": 0, "name": "digits"}
    tuner = finetuning.make_tuner(tiny_encoder(), Training(batch_size=4, steps=1), 10, mesh, data)
    with pytest.raises(ZeroDivisionError):
        tuner.fit(digits(data_dir, 8), **HYPER)
    assert (seen["cache"], seen["workers"]) == ("none", 0)


def test_fine_tuning_crops_images_of_different_sizes_on_the_host(load, tmp_path, mesh):
    shapes = [(10, 12, 3), (14, 9, 3), (8, 8, 3)]
    files = {f"{c}/{i}.png": picture(f"{c}{i}", shapes[i]) for c in "ab" for i in range(3)}
    source = load(unpack(tmp_path, files))
    assert not source.one_size
    training = Training(batch_size=4, epochs=1, frozen=True)
    encoder = tiny_encoder(3)
    encoder = encoder._replace(inputs=encoder.inputs._replace(crop=0.75))
    tuner = finetuning.make_tuner(encoder, training, 2, mesh)
    classifier = tuner.fit(source, **HYPER)
    assert np.isfinite(classifier.loss)
    # Test images are cropped once, as they are read.
    images = encoder.inputs._replace(crop=0.0).prepare(source.images(*encoder.inputs.resizing))
    h = np.asarray(make_apply(encoder)(encoder.variables["net"], images))
    kernel, bias = (np.asarray(classifier.head[name]) for name in ("kernel", "bias"))
    np.testing.assert_allclose(tuner.logits(classifier, source), h @ kernel + bias, atol=1e-5)


def test_fine_tuning_repeats_grey_images_to_three_channels(train, mesh):
    training = Training(batch_size=16, steps=1, frozen=True, augment="pad", pad=1)
    tuner = finetuning.make_tuner(tiny_encoder(3), training, 10, mesh)
    assert np.isfinite(tuner.logits(tuner.fit(train, **HYPER), train)).all()


def test_views_of_simclr_in_fine_tuning_are_blurred_with_their_probability():
    checks = np.indices((SIZE, SIZE)).sum(axis=0) % 2 * np.uint8(255)
    batch = {"input": np.stack([checks] * 64)[..., None], "index": np.arange(64)}
    training = Training(augment="simclr", crop_scale=(1.0, 1.0), blur=0.5)
    views = jax.jit(lambda key: finetuning._views(key, batch, training, tiny_encoder().inputs))
    spread = np.asarray(views(jax.random.key(0))).std(axis=(1, 2, 3))
    sharp = 0.3  # contrast and brightness lower the spread of 0.5 to 0.3 at least
    assert 16 < np.sum(spread < sharp - 0.01) < 48


@pytest.mark.parametrize("augment", ["resized", "pad", "simclr"])
def test_random_erasing_sets_a_box_of_the_image_to_grey(augment):
    """White images stay white except for the boxes; simclr's colour distortion keeps them grey."""
    training = Training(augment=augment, pad=0, crop_scale=(1.0, 1.0), erasing=0.5)
    batch = {"input": np.full((64, SIZE, SIZE, 1), 255, np.uint8), "index": np.arange(64)}
    views = jax.jit(lambda key: finetuning._views(key, batch, training, tiny_encoder().inputs))
    boxes = np.asarray(views(jax.random.key(0)))[..., 0] == 0.5
    assert 16 < boxes.any(axis=(1, 2)).sum() < 48
    assert not boxes.all(axis=(1, 2)).any()


def test_fine_tuning_rejects_invalid_settings_and_training_sets(frozen, train, mesh, monkeypatch):
    encoder, training, tuner = frozen
    for changed, message in (
        ({"augment": "none"}, r"crop must be one of \(.*\), got 'none'"),
        ({"steps": 0}, "either epochs or steps must be positive, got epochs=0.0 and steps=0"),
        ({"epochs": 2.0}, "either epochs or steps must be positive, got epochs=2.0 and steps=5"),
    ):
        with pytest.raises(ValueError, match=message):
            tuned = finetuning.make_tuner(encoder, training._replace(**changed), 10, mesh)
            tuned.fit(train, **HYPER)
    with pytest.raises(ValueError, match="of 3 training images are too small for 8 devices"):
        finetuning.resolve(training, 3, 8)
    some = train.take(np.arange(20))
    some.__dict__["labels"] = np.where(np.arange(20) < 3, -1, some.labels)
    with pytest.raises(ValueError, match="3 of 20 training images have no label"):
        tuner.fit(some, **HYPER)


def test_mean_and_per_class_accuracy_equal_scikit_learn():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(200, 8)), rng.choice(7, 200, p=np.arange(1, 8) / 28)
    scores, classes = finetuning.accuracies(logits, labels), np.arange(8)
    for k in (1, 5):
        expected = top_k_accuracy_score(labels, logits, k=k, labels=classes)
        assert scores[f"top{k}"] == pytest.approx(100 * expected)
    kinds = {"labels": np.unique(labels), "average": "macro"}
    expected = recall_score(labels, logits.argmax(axis=1), **kinds)
    assert scores["mean_per_class"] == pytest.approx(100 * expected)
    assert finetuning.accuracies(logits[:, :2], labels % 2)["top5"] == 100


def test_logits_that_are_not_finite_count_as_wrong():
    logits, labels = np.eye(3)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])
    logits[0], logits[2, 2] = np.nan, np.inf
    expected = {"top1": 50, "top5": 50, "mean_per_class": 50}
    assert finetuning.accuracies(logits, labels) == expected


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_mixup_and_cutmix_mix_labels_in_proportion_to_pixels(mixup, cutmix):
    """Images of ones are mixed with images of zeros: the mean pixel is the weight of the label."""
    ones, zeros = jnp.ones((2, 12, 9, 1)), jnp.zeros((2, 12, 9, 1))
    first, second = jax.nn.one_hot(jnp.array([[0, 1], [2, 2]]), 3)
    options = {"mixup": mixup, "cutmix": cutmix}
    mixed = jax.jit(lambda key: mix(key, (ones, first), (zeros, second), **options))
    shares, cut = [], []
    for seed in range(20):
        images, targets = mixed(jax.random.key(seed))
        share = np.asarray(images).mean(axis=(1, 2, 3))
        np.testing.assert_allclose(targets[:, 2], 1 - share, atol=1e-6)
        np.testing.assert_allclose(np.asarray(targets).sum(axis=1), 1, atol=1e-6)
        assert targets[0, 0] == targets[1, 1]
        shares.append(float(share[0]))
        cut.append(set(np.unique(images)) <= {0, 1})
    assert len({round(share, 3) for share in shares}) > 10
    assert (any(cut), all(cut)) == (cutmix > 0, mixup == 0)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.0, 0.0), (-0.8, 1.0), (0.8, -1.0), (np.nan, 1.0)])
def test_mix_refuses_parameters_of_no_beta_distribution(mixup, cutmix):
    labelled = jnp.ones((2, 4, 4, 1)), jnp.ones((2, 1))
    message = f"^mixup and cutmix must be >= 0, and one > 0, got {mixup} and {cutmix}$"
    with pytest.raises(ValueError, match=message):
        mix(jax.random.key(0), labelled, labelled, mixup=mixup, cutmix=cutmix)


def test_cutmix_pastes_a_box_with_the_aspect_ratio_of_the_image():
    """A box of the share 1 - lambda has the proportions of the image."""
    ones, zeros = jnp.ones((1, 30, 90, 1)), jnp.zeros((1, 30, 90, 1))
    targets = jnp.ones((1, 1)), jnp.zeros((1, 1))
    mixed = jax.jit(lambda key: mix(key, (ones, targets[0]), (zeros, targets[1]), **CUTMIX))
    whole = 0
    for seed in range(30):
        [image], [[share]] = map(np.asarray, mixed(jax.random.key(seed)))
        pasted = image[:, :, 0] == 0
        height, width = pasted.any(axis=1).sum(), pasted.any(axis=0).sum()
        assert pasted.sum() == height * width  # The pasted pixels are one box.
        assert share == pytest.approx(1 - pasted.mean(), abs=1e-6)
        inside = not (pasted[[0, -1]].any() or pasted[:, [0, -1]].any())
        if inside and height:
            whole += 1
            assert abs(width - 3 * height) <= 6  # Both sides are rounded to even numbers.
    assert whole >= 3


def test_fine_tuning_loss_equals_the_cross_entropy_of_the_logits(train, mesh, monkeypatch):
    """Images are standardised, and the images of the reversed batch keep their labels."""
    monkeypatch.setattr(finetuning, "mix", lambda key, batch, others, **_: others)
    encoder = tiny_encoder()
    encoder = encoder._replace(inputs=encoder.inputs._replace(mean=(0.4,), std=(0.25,)))
    training = Training(batch_size=48, steps=1, frozen=True, head_std=0.5, mixup=1.0, **PLAIN)
    tuner = finetuning.make_tuner(encoder, training, 10, mesh)
    classifier = tuner.fit(train, lr=0.0, weight_decay=0.0, seed=0)
    logits = np.asarray(tuner.logits(classifier, train), np.float64)
    p = softmax(logits)[np.arange(len(train)), train.labels]
    assert classifier.loss == pytest.approx(-np.log(p).mean(), rel=1e-4)


def test_linear_probe_on_crops_reports_the_best_of_its_evaluated_epochs(monkeypatch):
    scores = iter([{"top1": score, "top5": 90.0} for score in (10.0, 30.0, 20.0)])
    epochs = [finetuning.Classifier({}, {}, loss) for loss in (3.0, 2.0, 1.0)]
    tuner = SimpleNamespace(epochs=lambda *_, **__: epochs, logits=lambda *_: None)
    monkeypatch.setattr(finetuning, "make_tuner", lambda *_: tuner)
    monkeypatch.setattr(finetuning, "accuracies", lambda *_: next(scores))
    data = SimpleNamespace(num_classes=2, labels=None)
    hyper = {"lr": 1.0, "weight_decay": 0.0, "seed": 0, "best_of_every": 2}
    images = Images(None, data, data, None)
    actual = linear.evaluate_on_crops(images, training=Training(epochs=5), **hyper)
    assert actual == ({"top1": 30.0, "top5": 90.0}, 1.0, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    "preset", [name for name, settings in linear.PRESETS.items() if "training" in settings]
)
def test_linear_probe_on_crops_does_not_change_the_encoder(preset, data_dir, mesh, monkeypatch):
    settings = linear.PRESETS[preset]
    # An epoch has one step. The learning rate's milestones must lie before the end of training.
    asked = settings["training"]
    training = asked._replace(epochs=12, milestones=(6, 9) if asked.milestones else ())
    lr = min(settings["lr"], 2.0)  # The rates of MoCo do not converge in twelve steps.
    monkeypatch.setitem(linear.PRESETS, preset, {**settings, "training": training, "lr": lr})
    encoder, train, test = tiny_encoder(), digits(data_dir, 40), digits(data_dir, 30, "test")
    before = jax.tree.map(np.array, encoder.variables["net"])
    blank = Features(*[np.zeros((0, 0))] * 4)
    context = EvalContext(blank, train, test, encoder=encoder, size=SIZE, mesh=mesh)
    top1, top5 = linear.run(context, seed=0, preset=preset)
    assert same(before, encoder.variables["net"])
    assert (top1.metric, top5.metric) == ("linear_top1", "linear_top5")
    assert 0 <= top1.value <= top5.value <= 100
    details = json.loads(json.dumps(top1.details))
    assert (details["preset"], details["batch_size"], details["steps"]) == (preset, 40, 12)
    assert details["batch_size_asked"] == asked.batch_size
    assert details["train_loss"] < np.log(10) + 0.5
    assert details.get("best_epoch") in ((5, 10, 12) if preset == "hcl_quirks" else (None,))
    assert linear.run(context._replace(encoder=None), seed=0, preset=preset) == []
