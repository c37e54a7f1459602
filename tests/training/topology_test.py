"""Pods described by a name: their shape, errors, and a dry run that compiles for them."""

from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import pytest

from jaxssl import cli
from jaxssl.errors import UserError
from jaxssl.training import config as config_lib
from jaxssl.training import topology
from jaxssl.training.dry_run import dry_run

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module", autouse=True)
def devices():
    """Start JAX with the devices of all tests. "cpu:4" would set another number."""
    jax.devices()


SHAPES = {
    "v5e-256": "v5e:16x16", "v5litepod-8": "v5e:2x4", "v6e-1": "v6e:1x1", "v5p-8": "v5p:2x2x1",
    "v5p-512": "v5p:4x8x8", "v5p:4x4x12": "v5p:4x4x12", "h100-64": "1x8x8", "h100-4": "1x1x4",
    "h200-12": "1x3x4", "h200:2x4": "1x2x4",
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_pod_name_is_parsed_into_its_topology(monkeypatch, name, shape):
    def describe(torus="", platform="", topology="", target_config=""):
        assert (platform == "cuda") == (f"NVIDIA {name[:4].upper()}" in target_config)
        shapes.append(torus or topology)
        return SimpleNamespace(devices=jax.devices())

    shapes = []
    monkeypatch.setattr(topology.topologies, "get_topology_desc", describe)
    assert topology.describe(name).size == len(jax.devices())
    assert shapes == [shape]


def test_memory_of_gpus_is_three_quarters_of_that_of_their_data_sheets():
    gigabytes = {"h100-64": 60, "h200:2x4": 105.75, "v5e-8": 0, "cpu:8": 0}  # XLA knows the others
    assert {pod: topology.memory(pod) / 1e9 for pod in gigabytes} == gigabytes


@pytest.mark.parametrize("number", [1, 8])
def test_pod_of_cpu_devices_has_as_many_as_there_are(number):
    assert topology.describe(f"cpu:{number}").size == number


UNKNOWN = "", "v5e", "v9-8", "V5E-8", "v5e:2x", "v5e-0", "v5e-4x4", "v5p-3", "h100:8 x 8", "cpu:-1"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        *((name, None, "expected a pod such as v5e-256") for name in UNKNOWN),
        ("v5e-100", None, "give the sides of its torus"),
        ("v5e:3x3", jax.errors.JaxRuntimeError("not divisible"), "--topology=v5e:3x3: not divis"),
        ("v5e-4", RuntimeError("no TPU support"), r"not installed; pip install 'jaxssl\[tpu\]'"),
        ("h100-8", NotImplementedError(), r"not installed; pip install 'jaxssl\[cuda\]'"),
        ("cpu:9999", None, "JAX has started with 8 CPU devices"),
    ],
)
def test_pod_that_is_unknown_or_has_no_compiler_here_is_refused(monkeypatch, name, error, message):
    monkeypatch.setattr(topology.topologies, "get_topology_desc", Mock(side_effect=error))
    with pytest.raises(UserError, match=message):
        topology.describe(name)


TINY = [("batch_size", "16"), ("net.widths", "(4, 8)"), ("net.strides", "(2, 2)")]


@pytest.mark.long
@pytest.mark.parametrize("pod", ["cpu:4", "v5e-8", "h100-8"])
def test_dry_run_for_a_pod_counts_communication_without_taking_a_step(pod, capsys):
    """The last two run where the compilers of JAX for TPUs and GPUs are installed."""
    compilers = {"v": ("libtpu",), "h": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "c": ("jax",)}
    if not any(map(find_spec, compilers[pod[0]])):
        pytest.skip(f"no compiler for {pod}")
    dry_run(config_lib.load("digits", TINY), pod)
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert f"examples on each of {pod[-1]} devices" in lines["batch"].replace("images", "examples")
    assert "of the compiled step of 16 examples" in lines["memory"]
    assert "all-reduce" in lines["sends"] and "one" not in lines


@pytest.mark.long
def test_dry_run_of_a_ring_loss_counts_messages_to_the_next_device(capsys):
    dry_run(config_lib.load("digits", [*TINY, ("loss.name", "nt_xent"), ("loss.ring", "True")]))
    sends = capsys.readouterr().out.split("sends")[1]
    # Three arrays in the forward pass and four in the backward pass are passed on eight times.
    assert f"{7 * 8} collective-permute" in sends


def test_topology_flag_without_dry_run_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.run("train", ["--topology=v5e-8"])
    message = "--topology describes devices that are not here; add --dry_run"
    assert message in capsys.readouterr().err
