"""Pods described by a name, to compile programs for them without their devices."""

import math
import os
import re
from contextlib import suppress

import jax
from jax.errors import JaxRuntimeError
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxssl import distributed
from jaxssl.errors import UserError, one_line

TPUS = {"v5e": 2, "v5litepod": 2, "v6e": 2, "v5p": 3}  # dimensions of the torus of a pod
GPUS = {"h100": (80, 3350), "h200": (141, 4800)}  # memory in 10^9 bytes, and its rate per second
HOPPER = """gpu_device_info {{ cuda_compute_capability {{ major: 9 }} core_count: 132
  fpus_per_core: 128 clock_rate_ghz: 1.98 threads_per_warp: 32 threads_per_block_limit: 1024
  threads_per_core_limit: 2048 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: 233472 shared_memory_per_block: 49152 device_memory_size: {memory}
  shared_memory_per_block_optin: 232448 memory_bandwidth: {rate} l2_cache_size: 52428800 }}
  platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
  runtime_version {{ major: 12 minor: 9 }} device_description_str: "NVIDIA {name}" """
# Without a GPU, XLA cannot choose algorithms by their times.
UNTIMED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
# libtpu need not look for the chips of this machine, which other processes may use.
DESCRIBED = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1"}
DESCRIBED |= {"TPU_ACCELERATOR_TYPE": "v5p-8", "TPU_WORKER_HOSTNAMES": "localhost"}


def describe(name: str) -> Mesh:
    """Return a mesh of the devices of a pod, for which programs can be compiled and not run.

    JAX then uses only the CPU in this process.

    Args:
        name: "v5e-256", "v6e-64" or "v5p-512" (two for each chip), as the cloud names them, or the
            sides of the torus, as in "v5e:16x16"; "h100-64" or "h200:2x4" (hosts x GPUs); "cpu:8".

    Raises:
        UserError: if the pod is unknown, or the package with its compiler is not installed.
    """
    kind = _kind(name)
    try:
        sides = _sides(name)
        jax.config.update("jax_platforms", "cpu")
        if kind == "cpu":
            number = math.prod(sides)
            with suppress(RuntimeError):  # JAX raises an error if it has already started.
                jax.config.update("jax_num_cpu_devices", number)
            devices = jax.devices("cpu")[:number]
            if len(devices) < number:
                reason = f"JAX has started with {len(devices)} CPU devices; start Python again"
                raise ValueError(reason)
        elif kind in TPUS:
            for variable, value in DESCRIBED.items():
                os.environ.setdefault(variable, value)
            shape = f"{kind.replace('litepod', 'e')}:{'x'.join(map(str, sides))}"
            devices = topologies.get_topology_desc(shape, "tpu").devices
        else:
            size, rate = (x * 10**9 for x in GPUS[kind])
            devices = topologies.get_topology_desc(
                platform="cuda",
                target_config=HOPPER.format(memory=size, rate=rate, name=kind.upper()),
                topology="x".join(map(str, [*[1] * (3 - len(sides)), *sides])),
            ).devices
    except (ValueError, JaxRuntimeError) as error:
        raise UserError(f"--topology={name}: {one_line(error)}") from error
    except RuntimeError as error:
        raise UserError(
            f"--topology={name}: the compiler for these devices is not installed; "
            f"pip install 'jaxssl[{'tpu' if kind in TPUS else 'cuda'}]'"
        ) from error
    return distributed.make_mesh(devices)


def _kind(name: str) -> str:
    """Return the kind of device in the name of a pod, such as "v5e"."""
    return re.split("[-:]", name)[0]


def _sides(name: str) -> list[int]:
    """Return the sides of the torus of a pod of TPUs, or the numbers of hosts and of GPUs of each.

    Raises:
        ValueError: if the name does not describe a pod.
    """
    match = re.fullmatch(r"(\w+)([-:])(\d+(?:x\d+)*)", name)
    kind, joint, size = match.groups() if match else ("", "", "0")
    sides = [int(side) for side in size.split("x")]
    cores = 2 if kind == "v5p" and joint == "-" else 1  # v5p-N counts the cores of chips.
    is_valid = joint == ":" or (len(sides) == 1 and sides[0] % cores == 0)
    if 0 in sides or not is_valid or kind not in (*TPUS, *GPUS, "cpu"):
        raise ValueError(
            "expected a pod such as v5e-256, v6e:8x8, v5p-512, h100-64, h200:2x4 (hosts x GPUs) or "
            "cpu:8"
        )
    if joint == "-" and kind in TPUS:
        sides = torus(sides[0] // cores, TPUS[kind])
    if joint == "-" and kind in GPUS:  # The name gives only the number of GPUs.
        per_host = math.gcd(8, sides[0])  # at most eight
        sides = [sides[0] // per_host, per_host]
    return sides


def memory(name: str) -> int:
    """Return the bytes of a pod's GPU that JAX uses, or 0 for TPUs: XLA knows their memory.

    JAX takes three quarters of a GPU's memory by default.
    """
    size, _ = GPUS.get(_kind(name), (0, 0))
    return 75 * 10**7 * size


def torus(chips: int, dimensions: int) -> list[int]:
    """Return the sides of a pod of 2^k chips, which are as equal as possible.

    Raises:
        ValueError: for another number of chips.
    """
    power = chips.bit_length() - 1
    if chips != 2**power:
        raise ValueError(
            "there is no pod of this size; give the sides of its torus, as in v5p:4x4x12"
        )
    sides = [2 ** ((power + i) // dimensions) for i in range(dimensions)]
    return sides if sides[0] > 1 else sides[::-1]  # "2x2x1", as the cloud writes it
