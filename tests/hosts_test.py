"""Two processes, two devices each: together they get the batches of one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from jaxssl import parallel
from jaxssl.data.batches import make_batches
from jaxssl.data.pictures import Crop, Crops
from jaxssl.data.source import Part, Source

CACHES = ("device", "none")
STEPS = 3


def batches(cache: str, devices: int):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 8, 8, 3), np.uint8)
    records = [{"image": image, "label": i % 3} for i, image in enumerate(images)]
    source = Source("made", "train", ((Part(records), np.arange(50)),), tuple("abc"), (8, 8, 3))
    crops = Crops((Crop(4, (0.2, 1.0), (1.0, 1.0)),) * 2, (), 4)
    mesh = parallel.make_mesh(jax.devices()[:devices])
    return make_batches(source, 8, seed=0, crops=crops, mesh=mesh, cache=cache)


def last(cache: str, devices: int = 4) -> dict[str, dict[str, list]]:
    """For every device of this process, what it holds of batch number `STEPS`."""
    stream = batches(cache, devices)
    for _ in range(STEPS):
        batch = stream.next()
    stream.close()
    image = jax.tree.leaves(batch["image"])[0]
    found = {}
    for name, values in {**batch, "image": image}.items():
        for shard in values.addressable_shards:
            part = found.setdefault(str(shard.device.id), {})
            part[name] = np.asarray(shard.data).tolist()
    return found


def test_two_hosts_read_the_rows_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    command = [sys.executable, __file__, address]
    hosts = [
        subprocess.Popen([*command, str(i)], env=environment, stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [host.communicate(timeout=120)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0]
    outputs = [json.loads(output.splitlines()[-1]) for output in outputs]  # Gloo talks before
    for cache in CACHES:
        parts = [list(found[cache].values()) for found in outputs]
        assert [len(part) for part in parts] == [2, 2]
        assert parts[0] + parts[1] == list(last(cache).values())


def main() -> None:
    """One of the two hosts."""
    address, process = sys.argv[1:]
    jax.distributed.initialize(address, 2, int(process))
    print(json.dumps({cache: last(cache) for cache in CACHES}))


if __name__ == "__main__":
    main()
