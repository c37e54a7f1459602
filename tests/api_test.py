"""`jaxssl.train`, `jaxssl.evaluate` and `jaxssl.embed`, as a notebook calls them."""

import csv
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tune_cases
from PIL import Image

import jaxssl
from jaxssl import api
from jaxssl.data import source
from jaxssl.errors import Stopped, UserError
from jaxssl.evaluation import picture_neighbours
from jaxssl.kinds.image import statistics
from jaxssl.pretrained.export import export
from jaxssl.report.results import add_results
from jaxssl.training import config as configs
from jaxssl.training.workdir import goodput

CLASSES = 4


def images(n: int = 48, size: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images [n, size, size, 1] whose brightness tells their class, and labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % CLASSES
    noise = rng.integers(0, 20, (n, size, size, 1))
    return (noise + 50 * labels[:, None, None, None]).astype(np.uint8), labels


def tiny_config():
    config = jaxssl.get_config("digits")
    config.total_steps, config.batch_size, config.schedule.warmup_epochs = 4, 8, 0
    config.net.widths, config.net.strides, config.head.proj_hidden_dim = (4, 8), (2, 2), 8
    config.augment.size, config.eval.protocols = 8, ("knn",)
    config.data.split_seed, config.data.test_fraction = 3, 0.25
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run on arrays."""
    workdir = tmp_path_factory.mktemp("api") / "run"
    return jaxssl.train(tiny_config(), data=images(), loss="nt_xent", workdir=workdir)


def test_train_returns_the_metrics_results_encoder_and_report_of_the_run(run):
    assert run.config.loss.name == "nt_xent" and run.config.loss.temperature > 0
    assert run.metrics[-1]["step"] == 4 and np.isfinite(run.metrics[-1]["loss"])
    rows = {(row["metric"], row["features"]): row for row in run.results}
    assert 0 <= rows["knn_top1", "pretrained"]["value"] <= 100
    assert rows["knn_top1", "pretrained"]["dataset"] == "python"
    assert run.encoder.metadata["step"] == 4
    run.report.path.unlink()
    assert run.report._repr_html_().startswith("<!DOCTYPE html>")  # it is written again
    os.utime(run.report.path, (0, 0))  # as if it had been written before the last metrics
    assert run.report.path.stat().st_mtime > 0
    # An evaluation on other data adds results without writing the report.
    before = (run.workdir / "results.json").read_bytes()
    add_results(run.workdir, [{**row, "dataset": "other data"} for row in run.results])
    assert "other data" in run.report.path.read_text()
    (run.workdir / "results.json").write_bytes(before)  # for the other tests


@pytest.mark.long
def test_run_on_pictures_of_many_sizes_embeds_a_picture_alone_as_among_others(tmp_path):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (14 + i % 3, 28, 1), np.uint8) for i in range(16)]
    config = tiny_config()
    config.eval.protocols = ()
    run = jaxssl.train(config, data=pictures, loss="nt_xent", workdir=tmp_path / "run")
    together, alone = jaxssl.embed(run, pictures), jaxssl.embed(run, pictures[1:2])
    np.testing.assert_allclose(alone[0], together[1], atol=0.01)  # The host rounds pixels.
    *_, card = export(run.workdir, ["safetensors"], out=tmp_path)
    assert "the central square of 0.875 of the short side" in card.read_text()


def test_report_and_log_of_a_run_have_the_wall_time_with_the_final_evaluation(run):
    spent = goodput.describe(goodput.read(run.workdir))
    assert spent in (run.workdir / "report.html").read_text()
    lines = (run.workdir / "train.log").read_text().splitlines()
    assert [line.partition("wall time  ")[2] for line in lines if "wall time" in line] == [spent]


@pytest.mark.long
def test_extended_run_has_the_schedule_of_a_longer_run_and_results_record_the_extension(tmp_path):
    def train(workdir, **settings):
        protocol = {"eval.protocols": ("retrieval",), "loss": "nt_xent", "total_steps": 0}
        arguments = {"batch_size": 16, "log_every": 1} | protocol | settings
        return jaxssl.train(tiny_config(), data=images(), workdir=workdir, **arguments)

    short = train(tmp_path / "run", epochs=2)  # 38 images are 2 steps an epoch
    assert (short.encoder.metadata["step"], short.config.epochs) == (4, 2)
    with pytest.raises(UserError, match=f"--resume {short.workdir} --extend_to 5"):
        train(tmp_path / "run", epochs=5)
    run = jaxssl.resume(short, extend_to=5)
    whole = train(tmp_path / "whole", epochs=5)
    rates = [[row["learning_rate"] for row in one.metrics] for one in (short, run, whole)]
    assert rates[1] == [*rates[0][:4], *rates[2][4:]] and len(rates[2]) == 10
    assert list(run.config.extended) == ["2 epochs until step 4"]
    assert (short.encoder.metadata["step"], short.config.epochs) == (10, 5)
    assert short.encoder is short.encoder
    rows = {row["step"]: row for row in run.results if row["features"] == "pretrained"}
    assert rows[10]["extended"] == ["2 epochs until step 4"] and "extended" not in rows[4]

    before = run.results
    assert jaxssl.resume(run, extend_to=5).results == before  # The run is already finished.
    with pytest.raises(UserError, match="must be > 5, the epochs of the run, got 3"):
        jaxssl.resume(run, extend_to=3)
    with pytest.raises(UserError, match=f"another config .*--resume {run.workdir}$"):
        train(tmp_path / "run", epochs=2)
    assert jaxssl.get_config(run.workdir / "config.json").loss.name == "nt_xent"


@pytest.mark.fast
@pytest.mark.parametrize("key", ["name", "preset"])
def test_config_whose_component_is_exchanged_without_its_values_is_refused(key, tmp_path):
    config = jaxssl.get_config("digits")
    config.loss[key] = {"name": "dcl", "preset": "paper"}[key]
    with pytest.raises(UserError, match="loss.name or loss.preset has changed in the config"):
        jaxssl.train(config, workdir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_evaluate_reuses_in_memory_data_of_a_trained_run_but_a_reopened_run_needs_data(run):
    rows = jaxssl.evaluate(run, "retrieval", kinds=["pretrained"])
    assert {row["dataset"] for row in rows} == {"python"}
    with pytest.raises(
        UserError, match=r"data=\.\.\. in Python, or, to evaluate, name another set"
    ):
        jaxssl.evaluate(jaxssl.Run(run.workdir), "retrieval")


def test_keyword_arguments_set_the_same_config_keys_as_the_command_line():
    settings = {"epochs": 2, "lr": np.float32(0.5), "widths": [4, 8], "net.strides": "(2,2)"}
    config = configs.complete(jaxssl.get_config("digits"), list(settings.items()))
    assert (config.epochs, config.optim.lr, config.net.widths) == (2.0, 0.5, (4, 8))
    assert config.net.strides == (2, 2)
    assert config.schedule.warmup_epochs == 0.2  # The config's 5 exceed the run's 2 epochs.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "'epoch' is unknown; did you mean 'epochs'"),
        ({"temprature": 0.2}, "did you mean 'loss.temperature'"),
        ({"learning_rate": 0.2}, "did you mean 'optim.lr'"),
        ({"optim.weightdecay": 0.2}, "did you mean 'optim.weight_decay'"),
        ({"loss.k": 3}, "'loss.k' is unknown to loss.name='nt_xent'; valid: loss.block_size"),
        ({"loss.negative_weight": 3}, "; loss.name with 'negative_weight': auc_cl, auc_dino$"),
        ({"qqqq": 0.2}, "'qqqq' is unknown; valid: accumulate_steps"),
        ({"every": 1}, "'every' lacks its group; write checkpoint.every or eval.every"),
        ({"name": "cifar10"}, "'name' lacks its group; write augment.name or data.name"),
        ({"batch_size": 8.5}, "'batch_size' expects int, got 8.5"),
    ],
)
def test_wrong_keyword_error_names_valid_keys_or_the_expected_type(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        jaxssl.train("digits", loss="nt_xent", workdir=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_notebook_shows_user_errors_and_stopped_runs_in_one_line():
    # IPython shows what this method returns in place of a traceback.
    assert UserError("no such file")._render_traceback_() == ["UserError: no such file"]
    assert Stopped("runs/a is stopped")._render_traceback_() == ["Stopped: runs/a is stopped"]


def test_interrupted_call_raises_one_line_that_says_how_to_resume(tmp_path, monkeypatch):
    def stop(*_, **options):  # stands for a training loop that was interrupted after its checkpoint
        raise SystemExit(130)

    monkeypatch.setattr(api.pretrain, "train", stop)
    with pytest.raises(Stopped, match="run was interrupted; repeat the call to resume"):
        jaxssl.train(tiny_config(), workdir=tmp_path / "run")


def test_run_can_be_pickled_after_its_encoder_was_read(run):
    assert run.encoder.metadata["step"] == 4
    again = pickle.loads(pickle.dumps(run))
    assert again == run
    assert again.encoder.metadata["step"] == 4


def test_run_results_hold_the_online_metrics_of_the_last_and_the_best_epoch(run):
    rows = [row for row in run.results if row["protocol"] == "online"]
    assert [row["checkpoint"] for row in rows] == ["last", "best"]
    assert all(row["value"] == run.metrics[-1]["knn_top1"] and row["step"] == 4 for row in rows)


def test_repeated_train_call_returns_the_finished_run_and_refuses_other_data(run):
    config = tiny_config()
    again = jaxssl.train(config, data=images(), loss="nt_xent", workdir=run.workdir)
    assert again.results == run.results
    assert config.to_dict() == tiny_config().to_dict()  # The caller's config is unchanged.
    with pytest.raises(UserError, match="data.path"):
        jaxssl.train(tiny_config(), data=images(seed=1), loss="nt_xent", workdir=run.workdir)


def test_evaluate_accepts_a_run_or_an_encoder_and_another_data_set(run):
    pixels, labels = images(seed=2)
    data = ((pixels[:32], labels[:32]), (pixels[32:], labels[32:]))
    by_run = jaxssl.evaluate(run, "retrieval", data=data, kinds=["pretrained"])
    by_encoder = jaxssl.evaluate(run.encoder, ["retrieval"], data=data, kinds=["pretrained"])
    assert [row["value"] for row in by_run] == [row["value"] for row in by_encoder]
    assert len(run.results) > len(jaxssl.Run(run.workdir).results) - len(by_run)
    for call in (jaxssl.evaluate, jaxssl.embed):
        with pytest.raises(UserError, match="a workdir or a weights file, got NoneType"):
            call(None, "knn")


def test_protocols_may_be_joined_by_commas(run):
    data = images(seed=2)
    rows = jaxssl.evaluate(run.encoder, "retrieval, knn", data=data, kinds=["pretrained"])
    assert {row["protocol"] for row in rows} == {"retrieval", "knn"}


@pytest.mark.parametrize("form", [str, Path])
def test_data_may_be_the_path_of_a_folder(form, run, monkeypatch, tmp_path):
    configs = []
    monkeypatch.setattr(api.pretrain, "train", lambda config, *_, **__: configs.append(config.data))
    jaxssl.train(tiny_config(), data=form(tmp_path), workdir=run.workdir)
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "fruits"):
        (tmp_path / name).mkdir()
        jaxssl.train(tiny_config(), data=name, workdir=run.workdir)
    names = [(data.name, data.path) for data in configs]
    assert names == [
        ("folder", str(tmp_path)),
        ("digits", ""),
        ("folder", str(tmp_path / "fruits")),
    ]
    for name, expected in (
        ("imagenet_resized/32x32", ("imagenet_resized/32x32", "")),
        ("gs://bucket/pictures", ("folder", "gs://bucket/pictures")),
    ):
        jaxssl.train(tiny_config(), data=name, workdir=run.workdir)
        assert (configs[-1].name, configs[-1].path) == expected
    with pytest.raises(UserError, match="data=none does not exist"):
        jaxssl.train(tiny_config(), data=Path("none"), workdir=run.workdir)
    for name in ("my/none", "none.npz", "none.tar.xz"):
        with pytest.raises(UserError, match=f"data={name} does not exist"):
            jaxssl.train(tiny_config(), data=name, workdir=run.workdir)


def test_splits_by_name_are_refused_for_data_from_python(tmp_path):
    with pytest.raises(UserError, match="data.train_split does not apply to data from Python"):
        jaxssl.train(tiny_config(), data=images(), workdir=tmp_path, train_split="train[:50%]")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", ["train", "evaluate", "encoder", "file"])
def test_data_without_a_test_split_are_split_as_the_config_says(way, run, monkeypatch, tmp_path):
    taken = []
    monkeypatch.setattr(api.pretrain, "train", lambda *given, **_: taken.append(given[2]))
    monkeypatch.setattr(api.evaluation, "evaluate", lambda *_, **of: taken.append(of["splits"]))
    if way == "train":
        config = tiny_config()
        config.data.split_seed = 0
        jaxssl.train(config, data=images(), workdir=run.workdir, split_seed=3)
    elif way == "file":
        np.savez(tmp_path / "mine.npz", **dict(zip(("image", "label"), images(), strict=True)))
        (tmp_path / "mine.py").write_text(
            f"import numpy as np\ndef mine(): return dict(np.load('{tmp_path}/mine.npz'))\n"
        )
        data = tiny_config().data.to_dict() | {"name": f"{tmp_path}/mine.py:mine"}
        taken.append(source.load_splits(data))
    else:
        jaxssl.evaluate(run if way == "evaluate" else run.encoder, "knn", data=images())
    [splits] = taken
    order = np.random.default_rng(3).permutation(48)  # 3 is the split seed of tiny_config
    for part, expected in ((splits.test, order[:12]), (splits.train, order[12:])):
        np.testing.assert_array_equal(part.images(8), images()[0][np.sort(expected)])


def test_pictures_are_read_with_the_channels_that_an_encoder_takes(run, monkeypatch, tmp_path):
    taken = []
    monkeypatch.setattr(api.evaluation, "evaluate", lambda *_, **of: taken.append(of["splits"]))
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), np.uint8)
    paths = [tmp_path / f"{i}.png" for i in range(8)]
    for path, pixels in zip(paths, colours, strict=True):
        Image.fromarray(pixels).save(path)
    without_config = run.encoder._replace(metadata={})
    for encoder in (run, run.encoder, without_config):
        jaxssl.evaluate(encoder, "knn", data=(paths, [0, 1] * 4))
    assert [splits.test.shape[-1] for splits in taken] == [1, 1, 1]


def test_embed_returns_the_file_names_and_the_features_that_load_encoder_gives(run, tmp_path):
    pixels, _ = images()
    apply, variables, preprocess = jaxssl.load_encoder(run.workdir)
    expected = np.asarray(apply(variables, preprocess(pixels)))
    np.testing.assert_allclose(jaxssl.embed(run, pixels), expected, rtol=1e-4, atol=1e-5)
    assert jaxssl.load_encoder(run)[1].keys() == variables.keys()

    folder = tmp_path / "pictures" / "below"
    folder.mkdir(parents=True)
    names = ["0.png", "1,2.png", "2\n.png", '3"\r.png', "4\u2028.png"]
    for name, image in zip(names, pixels[:5], strict=True):
        Image.fromarray(image[..., 0]).save(folder / name)
    for suffix in (".npy", ".parquet"):
        out = tmp_path / f"features{suffix}"
        features = jaxssl.embed(run.workdir, tmp_path / "pictures", out=out)
        np.testing.assert_allclose(features, expected[:5], rtol=1e-4, atol=1e-5)
    names = [f"below/{name}" for name in names]
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), features)
    with (tmp_path / "features.files.csv").open(newline="") as listing:
        assert [row["file"] for row in csv.DictReader(listing)] == names
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "features.parquet").to_pydict()
    assert table["file"] == names
    np.testing.assert_array_equal(np.array(table["embedding"], np.float32), features)


def test_embed_accepts_one_picture_and_names_or_skips_unreadable_pictures(run, tmp_path, caplog):
    caplog.set_level("INFO", "jaxssl")
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "notes.txt").write_text("no picture")
    for index, image in enumerate(images()[0][:3]):
        Image.fromarray(image[..., 0]).save(folder / f"{index}.png")
    expected = jaxssl.embed(run, folder / "2.png", tmp_path / "one.npy")
    assert (tmp_path / "one.files.csv").read_text() == f"file\n{folder}/2.png\n"
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:-20])
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    for path in (folder, archive):
        with pytest.raises(UserError, match=r"1 of the pictures in .* cannot be read \(1.png: "):
            jaxssl.embed(run, path)
        features = jaxssl.embed(run, path, tmp_path / "some.npy", on_error="skip")
        assert (tmp_path / "some.files.csv").read_text() == "file\n0.png\n2.png\n"
        assert "left out, not pictures: notes.txt" in caplog.text
        caplog.clear()
        np.testing.assert_allclose(features[1:], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="images=.*none does not exist"):
        jaxssl.embed(run, folder / "none")


def test_embed_takes_an_array_in_a_file_as_the_array_itself(run, tmp_path):
    one = images()[0][0]
    np.save(tmp_path / "one.npy", one)
    np.testing.assert_array_equal(jaxssl.embed(run, tmp_path / "one.npy"), jaxssl.embed(run, one))


def test_embed_refuses_names_that_are_not_utf8_and_keeps_earlier_output(run, tmp_path):
    out, pixels = tmp_path / "x.npy", images()[0]
    paths = [tmp_path / "0.png", tmp_path / os.fsdecode(b"\xff.png")]
    for path, image in zip(paths, pixels, strict=False):
        Image.fromarray(image[..., 0]).save(path)
    earlier = jaxssl.embed(run, paths[:1], out)
    with pytest.raises(UserError, match=r"'.*\\udcff.png', which is not UTF-8; rename it"):
        jaxssl.embed(run, paths, out)
    np.testing.assert_array_equal(np.load(out), earlier)


@pytest.mark.long
def test_run_on_16_bit_images_with_five_channels_trains_evaluates_embeds_and_exports(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**16, (24, 9, 10, 5), np.uint16)
    np.savez(tmp_path / "data.npz", image=pixels, label=np.arange(24) % 3)
    config = tiny_config()
    config.augment, config.eval.protocols = {"name": "simclr", "size": 8}, ()
    run = jaxssl.train(config, data=tmp_path / "data.npz", workdir=tmp_path / "run")
    again = jaxssl.train(config, data=tmp_path / "data.npz", workdir=tmp_path / "run")
    assert again.metrics == run.metrics
    log = (run.workdir / "train.log").read_text()
    assert "left out   saturation, hue, grayscale of the views" in log
    assert run.config.data.mean == [*statistics("auto", run.splits.train, 8)["mean"]]
    inputs = run.encoder.inputs
    assert (inputs.channels, list(inputs.mean)) == (5, run.config.data.mean)
    rows = jaxssl.evaluate(run, "knn", kinds=["pretrained"])
    assert rows[0]["value"] == run.metrics[-1]["knn_top1"] and run.report.path.exists()
    features = jaxssl.embed(run, pixels)
    np.testing.assert_allclose(jaxssl.embed(run, pixels[0]), features[:1], rtol=1e-4, atol=1e-5)
    export(run.workdir, ["safetensors"], out=tmp_path / "out")
    [weights] = (tmp_path / "out").glob("*.safetensors")
    np.testing.assert_allclose(jaxssl.embed(weights, pixels), features, rtol=1e-4, atol=1e-5)
    folder = tmp_path / "pictures"
    for i in range(24):
        (folder / str(i % 3)).mkdir(parents=True, exist_ok=True)
        np.save(folder / str(i % 3) / f"{i:02}.npy", pixels[i])
    order = np.argsort(np.arange(24) % 3, kind="stable")
    actual = jaxssl.embed(run, folder)
    np.testing.assert_allclose(actual, features[order], rtol=1e-4, atol=1e-5)
    [row, *_] = jaxssl.evaluate(run, "knn", data=folder, kinds=["pretrained"])
    assert row["dataset"] == "pictures"
    page = tmp_path / "page.html"
    shown = {"k": 2, "threshold": 0.9, "rows": 4}
    assert picture_neighbours.write(run.encoder, pixels[:4], page, **shown)[0] == 4
    assert page.exists()
    grey = pixels[..., :1], np.arange(24) % 3
    with pytest.raises(UserError, match="takes 1-channel images, 'python' has 5-channel images"):
        jaxssl.train(config, data=(grey, (pixels, grey[1])), workdir=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    Image.fromarray(np.zeros((9, 10, 3), np.uint8)).save(tmp_path / "rgb.png")
    with pytest.raises(UserError, match="3 channels, expected 5"):
        jaxssl.embed(run, tmp_path / "rgb.png")


def test_embed_command_writes_the_array_that_jaxssl_embed_returns(run, tmp_path, run_command):
    Image.fromarray(images()[0][3, ..., 0]).save(tmp_path / "one.png")
    out = tmp_path / "out" / "features.npy"
    assert run_command("embed", run.workdir, tmp_path, "--out", out)[0] == 0
    expected = jaxssl.embed(run, images()[0][3:4])
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-4, atol=1e-5)


def test_step_of_an_encoder_is_refused_because_its_weights_are_loaded(run):
    for call, argument in ((jaxssl.embed, images()[0]), (jaxssl.evaluate, "knn")):
        with pytest.raises(UserError, match="no checkpoints; pass the run, or remove step 2"):
            call(run.encoder, argument, step=2)


def test_options_of_weights_are_refused_for_an_encoder_that_is_already_loaded(run):
    with pytest.raises(UserError, match="weights_options needs a weights file"):
        jaxssl.evaluate(run.encoder, "knn", data=images(), weights_options={"crop": 0.5})


def test_component_may_be_the_group_of_another_config(run, monkeypatch):
    trained = []
    monkeypatch.setattr(api.pretrain, "train", lambda config, *_, **__: trained.append(config))
    jaxssl.train(tiny_config(), loss=run.config.loss, net=run.config.net, workdir=run.workdir)
    [config] = trained
    for group in ("loss", "net"):
        assert config[group].to_dict() == run.config[group].to_dict()


def test_resumed_run_on_data_from_python_takes_the_given_number_of_workers(run, monkeypatch):
    trained = []
    monkeypatch.setattr(api.pretrain, "train", lambda config, *_, **__: trained.append(config))
    for settings in ({}, {"data.workers": 2}):
        jaxssl.resume(run.workdir, data=images(), **settings)
    assert [config.data.workers for config in trained] == [0, 2]


@pytest.mark.parametrize("config", [None, {"batch_size": 8}])
def test_config_of_another_type_is_refused(config, tmp_path):
    message = f"must be a name, a file or a ConfigDict, got {type(config).__name__}"
    with pytest.raises(UserError, match=message):
        jaxssl.train(config, workdir=tmp_path / "run")


def test_arguments_that_are_no_paths_are_refused(run):
    for call in (jaxssl.load_encoder, jaxssl.resume, jaxssl.Run):
        with pytest.raises(UserError, match="got int"):
            call(5)
    with pytest.raises(UserError, match="init must be a run, .*, got PretrainedEncoder"):
        jaxssl.train("digits", init=run.encoder)


def test_data_set_with_a_config_or_version_is_in_the_folder_of_the_runs_data():
    metadata = {"config": {"data": {"dir": "prepared"}}}
    encoder = tune_cases.flat_encoder()._replace(metadata=metadata)
    for name in ("cifar10", "cifar10:3.0.2", "imagenet_resized/32x32"):
        assert api.data_argument.settings(encoder, name, {"trust": True})["dir"] == "prepared"


def test_data_prepare_command_prints_the_splits(tmp_path, run_command):
    status, out, _ = run_command("data prepare", "digits", f"--config.data.dir={tmp_path}")
    assert status == 0 and "train: 1297 examples\ntest: 500 examples\n" in out
    assert (tmp_path / "digits").is_dir()


def test_importing_jaxssl_imports_jax_only_when_a_name_is_used():
    assert set(jaxssl.__all__) <= set(dir(jaxssl))
    code = "import sys, jaxssl; print('jax' in sys.modules, jaxssl.losses.nt_xent is not None)"
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        jaxssl.trian  # noqa: B018


def probe(context, *, seed):
    return []


@pytest.mark.parametrize(
    ("protocols", "options", "message"),
    [
        (["knn", 3], {}, "^protocols are names, got int$"),
        (probe, {}, "protocols are names, got function; put it into a file and name it: file.py:"),
        (["knn", probe], {}, "protocols are names, got function"),
        (None, {}, "protocols are names, got NoneType"),
        ("knn", {"out": 5}, "expected a path, got int"),
        ("knn", {"seed": -1}, r"seed must be an integer >= 0 and below 2\^31, got -1"),
        ("knn", {"lyer": "projector"}, r"evaluate\(\) has no option 'lyer'; did you mean 'layer'"),
        ("knn", {"data.test_split": "val"}, "data.test_split needs data=, the data set"),
        ("knn", {"data": "digits", "data.test_splt": "x"}, "data.test_splt.* is unknown"),
        ("knn", {"data": "digits", "data.test_split": "val"}, "has no split 'val'"),
        ("knn", {"data": np.zeros(1), "data.on_errors": "skip"}, "data.on_errors.* is unknown"),
        ("knn", {"data": np.zeros(1), "data.test_fraction": -0.3}, "test_fraction' must be >"),
    ],
)
def test_wrong_arguments_of_evaluate_are_refused_in_one_line(run, protocols, options, message):
    with pytest.raises(UserError, match=message):
        jaxssl.evaluate(run, protocols, **options)


def test_settings_of_data_from_python_that_have_no_effect_are_refused(run):
    data = (np.zeros((8, 8, 8, 1), np.uint8), [0, 1] * 4)
    with pytest.raises(UserError, match=r"data.classes does not apply to data from Python"):
        jaxssl.evaluate(run, "knn", data=data, **{"data.on_error": "skip", "data.classes": "0"})


def test_evaluate_takes_the_splits_of_another_data_set(run):
    rows = jaxssl.evaluate(run, "knn", data="digits", **{"data.test_split": "test[:50%]"})
    assert {row["split"] for row in rows} == {"test[:50%]"}
