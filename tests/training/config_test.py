"""Configs: overrides, presets and error messages."""

import json
import os

import jax
import numpy as np
import pytest
from file_cases import refused
from settings_test import flat
from tiny import DIGITS, SETTINGS

from jaxssl import cli, components, distributed
from jaxssl.errors import UserError
from jaxssl.losses.auc_cl import PRESETS
from jaxssl.training import build
from jaxssl.training import config as config_lib
from jaxssl.training.config.method import check_labels, make_augment, make_crops
from jaxssl.training.config.values import MOST_PIXELS
from jaxssl.training.workdir import opening

pytestmark = pytest.mark.fast

EXAMPLE = {"input": np.zeros((2, 8, 8, 1), np.uint8), "index": np.arange(2, dtype=np.int32)}
ODD_VALUES = ("0", "-1", "nan", "", "[]", "None", "1e30", "(0,0)", "(-1,)", "{'schedule': 'x'}")


def load(*overrides: str):
    return config_lib.load(DIGITS, [tuple(item.split("=", 1)) for item in overrides])


def test_overrides_are_converted_to_the_type_of_their_key():
    config = load(
        "batch_size=32", "optim.lr=1", "loss.alpha=0.25", "net.widths=(8,16)", "net.strides=[2,2]",
        "loss.clip_positive=false", "data.dir=/some/where", "eval.protocols=('knn',)",
    )  # fmt: skip
    assert config.batch_size == 32
    assert config.optim.lr == 1.0 and isinstance(config.optim.lr, float)
    assert config.loss.alpha == 0.25 and config.loss.clip_positive is False
    assert config.net.widths == (8, 16) and config.net.strides == (2, 2)
    assert config.data.dir == "/some/where" and config.eval.protocols == ("knn",)


def test_override_replaces_a_number_by_a_schedule_and_a_schedule_by_a_number():
    spec = "{'schedule': 'cosine', 'start': 0.1, 'end': 0.2}"
    config = load(f"optim.weight_decay={spec}", "method.name=momentum", "method.preset=byol")
    assert config.optim.weight_decay.to_dict() == {"schedule": "cosine", "start": 0.1, "end": 0.2}
    assert config.method.momentum.schedule == "cosine"
    config = load("method.name=momentum", "method.preset=byol", "method.momentum=0.9")
    assert config.method.momentum == 0.9


def test_argument_annotated_with_str_takes_a_string_or_a_number_instead_of_one():
    assert load("loss.name=decl", "loss.weight=alternate").loss.weight == "alternate"
    weight = load("loss.name=decl", "loss.preset=simclr", "loss.weight=1").loss.weight
    assert weight == 1.0 and isinstance(weight, float)


def test_missing_labels_are_refused_in_the_words_of_the_data():
    config = config_lib.load("graphs/tu:graphcl", [("method.labels", "True")])
    with refused("method.labels=True, but the split", "has graphs without a label; set data.train"):
        check_labels(config, 2, labelled=False)


def test_component_name_that_is_no_text_is_refused():
    with refused("config key 'predictor.name' expects str, got None"):
        config_lib.load(DIGITS, [("predictor.name", None)])


@pytest.mark.parametrize(
    ("group", "name", "preset"), [("loss", "decl", "simclr"), ("method", "momentum", "moco_v2")]
)
def test_name_and_preset_of_a_component_may_stand_in_any_order(group, name, preset):
    choices = [f"{group}.name={name}", f"{group}.preset={preset}"]
    config = load(*choices)
    assert config[group].preset == preset
    assert load(*reversed(choices)) == config


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["epochs=50"], 5.0),
        (["epochs=5"], 0.5),
        (["epochs=5.5"], 5.0),
        (["epochs=5", "schedule.warmup_epochs=2"], 2.0),
        (["epochs=5", "total_steps=500"], 5.0),  # Epochs are ignored.
        (["epochs=0", "total_steps=500"], 5.0),
        (["epochs=5", "total_steps=0"], 0.5),
    ],
)
def test_warm_up_is_shortened_to_a_tenth_of_fewer_epochs(overrides, expected):
    assert load(*overrides).schedule.warmup_epochs == expected


def test_epochs_do_not_shorten_the_warm_up_of_a_config_with_total_steps():
    settings = config_lib.read(DIGITS)
    settings.total_steps = 500
    settings = config_lib.complete(settings, [("epochs", "5")])
    assert settings.schedule.warmup_epochs == 5.0


def test_second_view_and_crops_groups_hold_only_the_arguments_that_are_set():
    config = load("second_view.noise=0.2", "crops.number=3", "crops.size=8")
    assert config.second_view.to_dict() == {"noise": 0.2}
    assert config.crops.to_dict() == {"number": 3, "size": 8}


def test_small_crops_can_be_switched_off():
    config = config_lib.load("imagenet_dino:vit_s", [("crops.number", "0")])
    assert config.crops.number == 0 and config.crops.size == 96


def test_changing_a_component_name_resets_its_settings_to_defaults():
    config = load("loss.temperature=0.2", "loss.name=nt_xent")
    defaults = {"block_size": None, "ring": False, "learn": ()}
    assert config.loss.to_dict() == {"name": "nt_xent", "temperature": 0.2, **defaults}


def test_overrides_win_over_presets():
    config = load("loss.preset=released_cifar", "loss.a=3")
    assert config.loss.a == 3.0
    assert config.loss.alpha == PRESETS["released_cifar"]["alpha"]
    paper = load("loss.preset=paper")
    assert (paper.loss.a, paper.loss.alpha, paper.loss.similarity) == (1.0, 0.5, "cosine")
    assert (paper.loss.preset, paper.loss.negative_reduction) == ("paper", "sum")


def test_recommended_preset_of_auc_cl_equals_its_defaults():
    recommended, plain = load("loss.preset=recommended").loss, load("loss.name=auc_cl").loss
    assert config_lib.arguments(recommended) == config_lib.arguments(plain)


def test_component_label_lists_settings_that_differ_from_the_defaults():
    label = lambda *overrides: config_lib.label("loss", load(*overrides).loss)  # noqa: E731
    assert label("loss.name=nt_xent") == "nt_xent"
    assert label("loss.preset=released_cifar") == "auc_cl (released_cifar)"
    assert label("loss.preset=released_cifar", "loss.a=3") == "auc_cl (released_cifar, a=3.0)"
    rising = "loss.a={'schedule': 'linear', 'start': 1.0, 'end': 2.0}"
    assert label("loss.preset=paper", rising) == "auc_cl (paper, a=linear schedule)"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batchsize=32", "'batchsize' is unknown; did you mean 'batch_size'?"),
        ("optim.learning=1", "'optim.learning' is unknown"),
        ("optim.lrr=1", "did you mean 'optim.lr'?"),
        ("optimm.lr=1", "'optimm.lr' is unknown; did you mean 'optim'?"),
        ("batch_size.x=1", "'batch_size.x' is unknown"),
        ("loss=nt_xent", "config key 'loss' is a group; set loss.name, or another of its k"),
        ("loss.temprature=1", "'loss.temprature' is unknown"),
        ("second_view.nose=0.2", "config key 'second_view.nose' is unknown"),
        ("second_view.foo=0.2", "'second_view.foo' is unknown; valid: second_view.crop_scale"),
        ("crops.siz=8", "'crops.siz' is unknown; did you mean 'crops.size'? valid: crops.crop"),
        ("crops.size=8", "crops.size has no effect without small crops; set crops.number"),
        ("views=1|second_view.crop_scale=(1, 1)", "crop_scale has no effect with a single view"),
        ("init_projector=True", "init_projector has no effect without init; set init to a run"),
        ("optim.momentum=0.99", "no effect with optim.name=adamw, only with sgd or lars or larc"),
        ("schedule.gamma=0.5", "has no effect with schedule.name=cosine, only with step"),
        ("data.mean=1", "'data.mean' is unknown; valid: "),
        (
            "loss.alpha={'schedule':'steps','values':{'0':1.0,'2.5':0.2},'unit':'epochs'}",
            "'loss.alpha': times of a schedule must be whole numbers, got 2.5",
        ),
        ("loss.name=ntxent", "loss.name='ntxent' is unknown; did you mean 'nt_xent'?"),
        ("loss.name=SimCLR", "loss.name='SimCLR' is unknown; did you mean 'nt_xent'?"),
        ("loss.preset=papr", "loss.preset='papr' is unknown; did you mean 'paper'?"),
        ("net.name=resnt", "did you mean 'resnet'?"),
        ("net.name=heads", "net.name='heads' is unknown"),
        ("augment.name=digit", "did you mean 'digits'?"),
        ("batch_size=many", "'batch_size' expects int, got 'many'"),
        ("batch_size=1.5", "'batch_size' expects int, got 1.5"),
        ("loss.clip_positive=7", "'loss.clip_positive' expects bool"),
        ("batch_size=1", "'batch_size' must be >= 2, got 1"),
        ("epochs=0", "'epochs' and 'total_steps' must be > 0"),
        ("optim.lr=-1", "'optim.lr' must be > 0"),
        ("eval.every=0", "'eval.every' must be > 0"),
        ("optim.backbone_lr=0", "'optim.backbone_lr' must be > 0, got 0"),
        ("optim.layer_decay=1.5", "'optim.layer_decay' must be <= 1, got 1.5"),
        ("data.channels=-1", "'data.channels' must be >= 0, got -1"),
        ("data.channels=17", "'data.channels' must be <= 16, got 17"),
        ("optim.freeze_blocks=-1", "'optim.freeze_blocks' must be >= 0, got -1"),
        ("batch_size=None", "'batch_size' expects int, got None"),
        ("loss.alpha=None", "'loss.alpha' expects float or a schedule, got None"),
        ("loss.alpha=warm", "'loss.alpha' expects float or a schedule, got 'warm'"),
        ("loss.name=nt_xent|loss.block_size=many", "'loss.block_size' expects int or None, got"),
        ("loss.name=mmcl|loss.num_steps=2.5", "'loss.num_steps' expects int, got 2.5"),
        ("schedule.milestones=a,b", "'schedule.milestones' expects tuple of float, got"),
        ("seed=2147483648", "'seed' expects int, got 2147483648"),
        ("views=1000", "'views' must be <= 64, got 1000"),
        ("net.widths=(-1,8)", "'net.widths' must be >= 1, got (-1, 8)"),
        ("net.widths=(0,0)", "'net.widths' must be >= 1, got (0, 0)"),
        ("augment.size=0", "'augment.size' must be >= 1, got 0"),
        ("crops.number=2|crops.size=0", "'crops.size' must be >= 1, got 0"),
        ("augment.size=99999", "'augment.size' must be <= 32768, got 99999"),
        ("second_view.noise=-0.1", "'second_view.noise' must be >= 0, got -0.1"),
        ("second_view.size=8", "second_view.size: all views have the same size; set augment.size"),
        ("schedule.end_factor=-0.1", "'schedule.end_factor' must be >= 0, got -0.1"),
        ("schedule.warmup_epochs=-1", "'schedule.warmup_epochs' must be >= 0, got -1"),
        ("loss.alpha={'schedule': 'linear', 'begin': 1}", "schedule key 'begin'; valid: end, "),
        ("loss.alpha={'schedule': 'linear', '__init__': 1}", "unknown schedule key '__init__'"),
        ("loss.alpha={'schedule': 'linear', 1: 1}", "unknown schedule key 1; valid: end, "),
        ("loss.alpha={'schedule': 'steps', 'values': {'a.b': 1}}", "times of a schedule must be"),
        ("batch_size=" + 9000 * "-", "'batch_size' expects int, got"),
        ("batch_size={[]: 1}", "'batch_size' expects int, got"),
    ],
)  # fmt: skip
def test_error_names_the_wrong_key_or_value_and_suggests_a_valid_one(override, message):
    with refused(message):
        load(*override.split("|"))


@pytest.mark.long
@pytest.mark.parametrize("key", flat(load().to_dict()))
def test_unusual_values_of_every_key_build_a_run_or_raise_a_user_error(key):
    mesh = distributed.make_mesh(jax.devices()[:1])
    for text in ODD_VALUES:
        try:
            config = config_lib.load(DIGITS, [*SETTINGS.items(), (key, text)])
            setup = build.build(config, 1297)
            make_crops(config)
            if key.partition(".")[0] in ("net", "head", "views", "precision"):
                build.make_init(setup, EXAMPLE, 1297, mesh)  # only defines the function
        except UserError as error:
            assert "\n" not in str(error)


def test_packaged_configs_are_found_by_name_and_by_path_in_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "graphs/necklaces"):
        assert config_lib.find(name) == config_lib.find(f"configs/{name}.py")
    suite = components.CONFIGS / "suites" / "transfer.py"
    assert config_lib.find("transfer", "suite") == suite
    assert config_lib.find("configs/suites/transfer.py", "suite") == suite
    for name, noun in (("digits.py", "config"), ("transfer", "config"), ("digits", "suite")):
        with refused(f"{noun} '{name}' does not exist; expected a Python"):
            config_lib.find(name, noun)


def test_config_with_variants_is_loaded_by_name_and_by_path(tmp_path):
    by_name, by_path = "tcl:cifar100", f"{components.CONFIGS}/tcl.py:cifar100"
    in_checkout = f"configs/{by_name.replace(':', '.py:')}"
    one, *others = map(config_lib.load, (by_name, by_path, in_checkout))
    assert others == [one, one] and one.data.name == "cifar100"
    assert config_lib.run_name(by_name) == config_lib.run_name(by_path) == "tcl_cifar100"
    mine = tmp_path / "a:b.py"
    text = "from jaxssl.configs import digits\ndef get_config(variant='cifar_simclr'):\n    "
    text += "config = digits.get_config()\n    config.eval.knn = variant\n    return config\n"
    mine.write_text(text)
    knn = [config_lib.load(f"{mine}{end}").eval.knn for end in ("", ":instdisc")]
    assert knn == ["cifar_simclr", "instdisc"]


def test_paths_of_data_become_absolute_and_a_run_may_continue_where_its_files_have_moved(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    names = {"data.name": "folder", "data.path": "pictures/", "data.labels": "~/labels.csv"}
    before = config_lib.load("digits", list(names.items()))
    assert before.data.path == str(tmp_path / "pictures")
    assert before.data.labels == "/home/me/labels.csv" and before.data.dir == ""
    after = config_lib.complete(before, [("data.path", "gs://bucket/pictures")])
    assert after.data.path == "gs://bucket/pictures"
    assert config_lib.conflicts(after, before.to_dict()) == []
    mine = tmp_path / "mine.py"
    mine.write_text("def load(path):\n    return path\n")
    for text in ("owner/name", "https://x.org/a"):  # A function of the user gets any text.
        changes = [("data.name", f"{mine}:load"), ("data.path", text)]
        assert config_lib.load("digits", changes).data.path == text
    assert config_lib.load("digits", [("data.dir", "s3://b/x")]).data.dir == "s3://b/x"
    for key in ("data.path", "data.labels"):
        with refused(f"{key} contains the name '", "b\\udcff', which is not UTF-8; rename it"):
            config_lib.load("digits", list((names | {key: os.fsdecode(b"b\xff")}).items()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tcl:cifar11",
            "tcl.py' has no variant 'cifar11'; did you mean 'cifar10'? valid: cifar10, ",
        ),
        ("tcl", "tcl.py' needs a variant, as in NAME:VARIANT; valid: cifar10, cifar100"),
        ("digits:tiny", "digits.py' has no variants; leave ':tiny' out"),
        ("tlc:cifar10", "config 'tlc' does not exist; expected a Python file"),
        ("simclr", "or 'cifar10_baselines:simclr'"),
    ],
)
def test_error_about_an_unknown_variant_suggests_the_closest_ones(name, message):
    with refused(message):
        config_lib.load(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("x = 1\n", "has no get_config()"),
        ("import nowhere_to_be_found\n", "failed: ModuleNotFoundError"),
        ("def get_config(:\n", "failed: SyntaxError"),
        ("def get_config():\n    return 1 / 0\n", "failed: ZeroDivisionError"),
        ("def get_config():\n    return None\n", "no get_config() that returns a ConfigDict"),
        ("def get_config():\n    return C({'net': 3})\n", "lacks the group 'net'"),
    ],
)
def test_error_about_an_invalid_config_names_its_file(tmp_path, text, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(f"from ml_collections import ConfigDict as C\n{text}")
    with refused("mine.py", message):
        config_lib.load(path)


def test_error_about_a_config_suggests_the_file_with_its_suffix(tmp_path):
    (tmp_path / "mine.py").touch()
    with refused("mine' does not exist", f"did you mean '{tmp_path / 'mine.py'}'?"):
        config_lib.load(tmp_path / "mine")


def test_config_that_renames_the_loss_only_is_told_to_replace_its_group(tmp_path):
    text = (
        "from jaxssl.configs import digits\ndef get_config():\n    config = digits.get_config()\n"
    )
    text += "    config.loss.name = 'nt_xent'\n    {}\n    return config\n"
    mine = tmp_path / "mine.py"
    mine.write_text(text.format(""))
    with refused("loss.preset='recommended': 'nt_xent' has no presets; leave it out"):
        config_lib.load(mine)
    mine.write_text(text.format("del config.loss['preset']; config.loss['alpha'] = 0.2"))
    with refused("loss.alpha is not a setting of 'nt_xent'", "replace the whole group"):
        config_lib.load(mine)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '"x"', "\xff", "null", "{}"]
    + ['{"data": 3}', '{"a.b": 1}', '{"__class__": 1}'],
)
def test_config_json_without_the_config_of_a_run_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="holds no run .*; train first: jaxssl train --workdir"):
        config_lib.read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="config.json is not the config of a run .*; choose anothe"):
        config_lib.read_config(tmp_path)


OTHERS = ["epochs=50"], ["seed=1"], ["epochs=150", "seed=1"], ["epochs=150", "total_steps=500"]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [(["epochs=150"], " --extend_to 150"), *((changes, "") for changes in OTHERS)],
)
def test_error_about_another_config_names_the_command_that_goes_on(tmp_path, changes, flag):
    (tmp_path / "config.json").write_text(json.dumps(load().to_dict()))
    with pytest.raises(UserError, match=rf": jaxssl train --resume {tmp_path}{flag}$"):
        opening.check_same_config(load(*changes), tmp_path)


@pytest.mark.parametrize(
    ("overrides", "argument", "default", "other"),
    [
        (["net.name=convnext"], "net.epsilon", 1e-6, 1e-5),
        (["loss.preset=released_cifar"], "loss.a", PRESETS["released_cifar"]["a"], 7.0),
        ([], "method.queue_size", 0, 8),
    ],
)
def test_run_without_a_later_argument_of_its_component_resumes_with_the_default(
    tmp_path, overrides, argument, default, other
):
    stored = load(*overrides).to_dict()
    group, key = argument.split(".")
    del stored[group][key]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    opening.check_same_config(load(*overrides), tmp_path)
    config = opening.resume_config(tmp_path, trust=True)
    assert config_lib.conflicts(config, stored) == []
    with pytest.raises(UserError, match=rf"\({argument}: {default} -> {other}\)"):
        opening.check_same_config(load(*overrides, f"{argument}={other}"), tmp_path)


@pytest.mark.parametrize(
    "node", [{"a.b": 1}, {"unknown": 1}, {"preset": "x"}, {"name": "x"}], ids=str
)
def test_stored_group_that_is_not_valid_is_a_difference(tmp_path, node):
    stored = load().to_dict()
    stored["net"] |= node
    [(key, value)] = node.items()
    assert f"net.{key}: {value!r} -> {load().net.get(key)!r}" in config_lib.conflicts(
        load(), stored
    )


@pytest.mark.parametrize(("key", "value"), [("epochs", "x"), ("epochs", None), ("extended", 5)])
def test_damaged_length_in_a_config_json_is_a_difference(tmp_path, key, value):
    (tmp_path / "config.json").write_text(json.dumps(load().to_dict() | {key: value}))
    config = opening.take_lengths(load(), tmp_path)
    with refused(f"a run of another config ({key}: {value!r} -> {config.get(key)}); choose"):
        opening.check_same_config(config, tmp_path)


def test_earlier_lengths_of_an_extended_run_stay_with_its_workdir(tmp_path):
    lengths = ("2 epochs until step 4",)
    for name, earlier in (("extended", {"extended": lengths}), ("other", {})):
        (tmp_path / name).mkdir()
        stored = load().to_dict() | earlier
        (tmp_path / name / "config.json").write_text(json.dumps(stored))
    # A new run from the config of an extended one, its second start, and the extended run itself.
    config = config_lib.load(tmp_path / "extended" / "config.json", trust=True)
    for name in ("new", "other"):
        assert "extended" not in opening.take_lengths(config, tmp_path / name)
    opening.check_same_config(config, tmp_path / "other")
    config = opening.take_lengths(config, tmp_path / "extended")
    assert tuple(config.extended) == lengths
    opening.check_same_config(config, tmp_path / "extended")
    assert config == opening.resume_config(tmp_path / "extended", trust=True)


def test_differences_between_two_configs_are_listed_by_key():
    ours, theirs = {"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}, "e": 5}
    lines = ["b.c: 4 -> 2", "b.d: None -> 3", "e: 5 -> None"]
    assert config_lib.differences(ours, theirs) == lines
    assert config_lib.join_differences(lines) == "; ".join(lines)
    assert config_lib.join_differences([*lines, "f", "g"]) == f"{'; '.join(lines)} and 2 more"


def test_command_line_overrides_are_separated_from_flags():
    argv = ["train.py", "--config=x.py", "--config.a.b=c=d", "--config.e", "5", "--workdir", "w"]
    rest, overrides = cli.split_overrides(argv)
    assert rest == ["train.py", "--config=x.py", "--workdir", "w"]
    assert overrides == [("a.b", "c=d"), ("e", "5")]
    with pytest.raises(UserError, match="--config.e needs a value"):
        cli.split_overrides(["train.py", "--config.e"])


def test_views_of_the_largest_allowed_size_can_be_traced():
    settings = load(f"augment.size={MOST_PIXELS}")
    images, key = jax.ShapeDtypeStruct((2, 8, 8, 1), np.uint8), jax.random.key(0)
    index = np.arange(2, dtype=np.int32)
    views = jax.eval_shape(make_augment(settings), key, images, index)["views"]
    assert views.shape == (2, 2, settings.augment.size, settings.augment.size, 1)


def test_user_error_message_has_bounded_length():
    with pytest.raises(UserError) as caught:
        load(f"data.name={'a' * 120_000}", "augment.size=0")
    assert len(str(caught.value)) < 3000
    error = UserError(f"begin {'a' * 120_000} end")
    assert len(str(error)) < 2100 and str(error).startswith("begin") and str(error).endswith("end")


@pytest.mark.parametrize("key", ["epoch", "schedule.warmup", "optim.learning_rate", "eval.probes"])
def test_unknown_keys_of_a_config_from_python_are_refused(key):
    config = config_lib.load(DIGITS)
    config = type(config)(config.to_dict())
    *group, name = key.split(".")
    (config[group[0]] if group else config)[name] = 1
    with refused(f"config key {key!r} is unknown"):
        config_lib.complete(config)


def test_times_of_a_schedule_are_stored_as_text():
    spec = {"schedule": "steps", "values": {0: 0.5, 5.0: 1.0}, "unit": "epochs"}
    for given in (spec, str(spec)):
        config = config_lib.load(DIGITS, [("loss.alpha", given)])
        assert config.loss.alpha.to_dict()["values"] == {"0": 0.5, "5": 1.0}
    with refused("config key 'loss.alpha': times of a schedule must be whole numbers, got 7.5"):
        config_lib.load(DIGITS, [("loss.alpha", {**spec, "values": {0: 0.5, 7.5: 1.0}})])


def test_weights_to_start_from_have_their_absolute_path_in_the_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_lib.load(DIGITS, [("init", "runs/a")])
    assert config.init == str(tmp_path / "runs" / "a")
    # Earlier versions stored the path as it was given.
    assert config_lib.conflicts(config, {**config.to_dict(), "init": "runs/a"}) == []
    assert config_lib.conflicts(config, {**config.to_dict(), "init": "runs/b"}) != []
    assert config_lib.load(DIGITS, [("init", "hf://a/b")]).init == "hf://a/b"
