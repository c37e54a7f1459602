"""Flags of XLA that the tests set before JAX is imported."""

from importlib.metadata import version

# Compilation takes most of the time, because tests run hundreds of programs once on small arrays.
# These flags compile several times as fast, into slower code for the same operations. Threads would
# only wait for each other, because the workers of pytest keep two cores busy. For the same reason,
# programs are not split into parts that are compiled in parallel.
QUICK_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)
if version("jax").startswith("0.10."):  # XLA of later versions aborts if it gets this flag.
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"
DEVICES = "--xla_force_host_platform_device_count"
