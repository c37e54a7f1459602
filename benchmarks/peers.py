"""Compare the speed of SimCLR's training with that of lightly, from images to the update.

    python benchmarks/peers.py [--rounds 5] [--peer PATH/python]

Both train the small convolutional network of `configs/studies.py` on the same random images of 32 x
32 pixels at batch 64, with SimCLR's views, blur included, NT-Xent and AdamW. lightly makes views by
torchvision's transforms in 0 and in 2 worker processes. ``--peer`` is the Python with lightly.
Every round runs all contenders, each in a process of its own. The printed numbers are images per
second, as median [smallest-largest] over rounds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
IMAGES, SIZE, BATCH, EPOCHS = 10_000, 32, 64, 3  # the first epoch is not counted
TEMPERATURE = 0.5


def images() -> np.ndarray:
    """Return random images that are smooth, as photos are."""
    coarse = np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, 3), np.uint8)
    return coarse.repeat(SIZE // 8, axis=1).repeat(SIZE // 8, axis=2)


def ours() -> float:
    """Return the images per second of a run of `jaxssl.train`, by its log."""
    sys.path.insert(0, str(ROOT))
    import jaxssl

    settings = {"loss.temperature": TEMPERATURE, "eval.every": EPOCHS + 1, "log_every": 50}
    with tempfile.TemporaryDirectory() as folder:
        jaxssl.train(
            "studies:small",
            data=images(),
            loss="nt_xent",
            epochs=EPOCHS,
            workdir=folder,
            **settings,
        )
        lines = [json.loads(x) for x in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return float(
        np.median([x["images_per_second"] for x in lines if x.get("epoch", 0) > 1 and "loss" in x])
    )


def lightly(workers: int) -> float:
    """Return the images per second of a training loop as lightly's documentation has it."""
    import torch
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform
    from PIL import Image
    from torch_step import convolutions

    class Pictures(torch.utils.data.Dataset):
        transform = SimCLRTransform(SIZE)
        pictures = tuple(Image.fromarray(image) for image in images())

        def __len__(self) -> int:
            return IMAGES

        def __getitem__(self, index: int) -> list[torch.Tensor]:
            return self.transform(self.pictures[index])

    loader = torch.utils.data.DataLoader(
        Pictures(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    layers = convolutions(3, (32, 64, 128), (2, 2, 2))
    net = torch.nn.Sequential(*layers, SimCLRProjectionHead(128, 256, 128))
    loss_fn = NTXentLoss(temperature=TEMPERATURE)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3)
    start = 0.0
    for epoch in range(EPOCHS):
        if epoch == 1:
            start = time.perf_counter()
        for views in loader:
            optimiser.zero_grad()
            loss_fn(net(views[0]), net(views[1])).backward()
            optimiser.step()
    return (EPOCHS - 1) * len(loader) * BATCH / (time.perf_counter() - start)


CONTENDERS = {
    "jaxssl": ours,
    "lightly, 0 workers": lambda: lightly(0),
    "lightly, 2 workers": lambda: lightly(2),
}


def main() -> None:
    """Run all contenders in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has lightly")
    parser.add_argument("--only", choices=CONTENDERS, help="run one contender and print its figure")
    args = parser.parse_args()
    if args.only:
        print(CONTENDERS[args.only]())
        return
    from shared import in_turns, spread  # imports JAX, which the Python with lightly may lack

    def measure(name: str) -> float:
        python = sys.executable if name == "jaxssl" else args.peer
        command = [python, __file__, "--only", name]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return float(out.split()[-1])

    speeds = in_turns({name: partial(measure, name) for name in CONTENDERS}, args.rounds)
    for name, values in speeds.items():
        print(f"{name:<20} {spread(values, digits=0)}")


if __name__ == "__main__":
    main()
