"""Runs on videos: train, stop, resume, evaluate and report."""

import json
from dataclasses import replace

import numpy as np
import pytest
from jax import numpy as jnp
from shared_folders import shared_folder
from tiny import DIGITS
from workdir_cases import assert_resumes, trained

import jaxssl
from jaxssl import distributed
from jaxssl.data import source
from jaxssl.data.toy import moving_digits
from jaxssl.errors import UserError
from jaxssl.evaluation import run as evaluate
from jaxssl.evaluation.context import _raw_features
from jaxssl.kinds import video
from jaxssl.kinds.video import VideoInputs
from jaxssl.models import s3d
from jaxssl.training import config

pytestmark = pytest.mark.long
CONFIG = DIGITS.parent / "video" / "moving_digits.py"
STEPS = 4
TINY = {"batch_size": "8", "total_steps": str(STEPS), "log_every": "2", "net.width": "0.02"}
TINY |= {"augment.frames": "5", "augment.size": "17", "augment.jitter": "0"}
TINY |= {"head.proj_hidden_dim": "8", "head.proj_output_dim": "6", "schedule.warmup_epochs": "0.0"}
TINY |= {"eval.every": "100", "eval.protocols": "('retrieval:default','linear:video')"}


@pytest.fixture(scope="module", autouse=True)
def one_stage():
    """S3D with a single block, which compiles in a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3d, "STAGES", s3d.STAGES[:1])
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A function that makes the config of a tiny run on 24 training and 8 test videos."""

    def prepare(folder):
        made = config.load(CONFIG, [*TINY.items(), ("data.dir", str(folder))])
        source.load(made.data, "train", "video")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving_digits, "SIZES", {"train": 24, "test": 8})
        directory = shared_folder(tmp_path_factory, "video_data", prepare)

    def make(**changes):
        values = {**TINY, "data.dir": str(directory), **changes}
        return config.load(CONFIG, list(values.items()))

    return make


@pytest.fixture(scope="module")
def run(settings, tmp_path_factory):
    """The workdir of an uninterrupted run."""
    return trained(tmp_path_factory, "videos", settings())


def test_video_run_writes_results_and_a_report(run):
    rows = json.loads((run / "results.json").read_text())["results"]
    actual = {(row["features"], row["metric"]) for row in rows}
    for kind in ("raw", "untrained", "pretrained"):
        assert (kind, "retrieval_r1") in actual and (kind, "linear_top1") in actual
    report = (run / "report.html").read_text()
    assert "retrieval_<wbr>r1</th>" in report and report.rstrip().endswith("</html>")
    log = (run / "train.log").read_text()
    assert "24 clips of 12x32x32x1, 8 classes" in log


@pytest.mark.long
def test_interrupted_run_resumes_bit_for_bit(settings, run, tmp_path):
    quiet = {"eval.protocols": "()"}
    assert_resumes(settings(**quiet), run, tmp_path, at=2, steps=STEPS)


def test_eval_rejects_videos_with_other_channels_or_too_few_frames(settings, run, monkeypatch):
    load = source.load_splits

    def with_shape(shape):
        def changed(*args):
            splits = load(*args)
            return splits._replace(test=replace(splits.test, shape=shape))

        monkeypatch.setattr(source, "load_splits", changed)

    with_shape((12, 32, 32, 2))
    with pytest.raises(UserError, match="1 channels, 'moving_digits' has 12 and 2"):
        evaluate.evaluate(run, ["knn"])
    with_shape((4, 32, 32, 1))
    with pytest.raises(UserError, match="clips of 5 frames or more"):
        evaluate.evaluate(run, ["knn"])


def middle_frames(split, frames):
    return video.array(split, VideoInputs(8, frames, 1, 1))


@pytest.mark.long
def test_encoder_of_a_video_run_computes_finite_features_of_clips(settings, run):
    clips = middle_frames(source.load(settings().data, "test", "video"), 5)[:3]
    apply, variables, preprocess = jaxssl.load_encoder(run)
    features = apply(variables, preprocess(clips))
    assert features.shape[0] == 3 and np.isfinite(features).all()


def test_ten_crop_evaluation_uses_the_middle_frames():
    clips = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 9, 16, 16, 1)), jnp.uint8)
    inputs = VideoInputs(size=8, frames=3, stride=2, channels=1)
    once, ten = (np.asarray(i.prepare(clips)) for i in (inputs, inputs._replace(copies=10)))
    assert once.shape == (2, 3, 8, 8, 1) and ten.shape == (20, 3, 8, 8, 1)
    # The last five crops of a video are the first five, mirrored.
    np.testing.assert_allclose(ten[5:10], ten[:5, :, :, ::-1], atol=1e-6)
    assert np.abs(once).max() <= 1
    middle = clips[:, 2:7]  # three frames at a distance of two cover five frames
    np.testing.assert_array_equal(once, inputs.prepare(middle))
    np.testing.assert_array_equal(ten, inputs._replace(copies=10).prepare(middle))


def test_raw_video_features_are_the_pixels_of_all_frames(settings):
    test = source.load(settings().data, "test", "video")
    clips = middle_frames(test, 12)
    actual = _raw_features(video.kind, distributed.make_mesh(), clips)
    assert actual.shape == (8, 12 * 16 * 16)
    # Halving a frame averages its pixels, so only the pixels at its edges change its mean.
    expected = clips[:].mean((2, 3, 4)) / 255
    np.testing.assert_allclose(actual.reshape(8, 12, -1).mean(2), expected, atol=2e-2)


def test_middle_frames_reads_the_frames_in_the_middle_of_each_clip(settings):
    train = source.load(settings().data, "train", "video")
    whole = np.stack([example.input for example in train.read(np.arange(3))])
    np.testing.assert_array_equal(middle_frames(train, 4)[:3], whole[:, 4:8])
