"""Compare SimCLR's training with that of lightly: speed, and accuracy if pictures are given.

    python benchmarks/peers.py [--rounds 5] [--peer PATH/python]
    python benchmarks/peers.py --rounds 3 --data cifar10.tar.xz    # files SPLIT/CLASS/NAME

Both train the small convolutional network of `configs/studies.py` on the same images of 32 x 32
pixels at batch 64, with the views of that config, NT-Xent, AdamW, a warm-up and a cosine. lightly
makes views by torchvision's transforms in 0 and in 2 worker processes. ``--peer`` is the Python
with lightly. Every round runs all contenders, each in a process of its own. The number of the round
is their seed.

Without ``--data`` the images are random and a run has 3 epochs. The printed numbers are images per
second, as median [smallest-largest] over rounds. With ``--data`` every fifth picture is used, a run
has 20 epochs, and the k-NN accuracy of the backbone's features (k = 200, T = 0.1) is printed too.
"""

import argparse
import io
import itertools
import json
import math
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
IMAGES, SIZE, BATCH = 10_000, 32, 64
SPEED_EPOCHS, EPOCHS = 3, 20  # the first epoch is not counted
RATE, DECAY, TEMPERATURE = 2e-3, 1e-4, 0.5
Arrays = dict[str, np.ndarray]


def random_images() -> Arrays:
    """Return random images that are smooth, as photos are."""
    coarse = np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, 3), np.uint8)
    return {"train": coarse.repeat(SIZE // 8, axis=1).repeat(SIZE // 8, axis=2)}


def read_pictures(path: Path) -> tuple[Arrays, Arrays]:
    """Return every fifth picture of an archive and the classes, by the splits train and test."""
    from PIL import Image

    arrays, labels = {}, {}
    with tarfile.open(path) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.count("/") >= 2]
        files = sorted(members, key=lambda m: m.name)
        for split in ("train", "test"):
            chosen = [m for m in files if m.name.split("/")[-3] == split][::5]
            content = [archive.extractfile(m).read() for m in chosen]
            arrays[split] = np.stack([np.asarray(Image.open(io.BytesIO(x))) for x in content])
            names = [m.name.split("/")[-2] for m in chosen]
            labels[split] = np.unique(names, return_inverse=True)[1]
    return arrays, labels


def ours(arrays: Arrays, epochs: int, seed: int) -> tuple[float, Arrays]:
    """Return the images per second of `jaxssl.train` by its log, and features of all images."""
    sys.path.insert(0, str(ROOT))
    import jaxssl

    settings = {"loss.temperature": TEMPERATURE, "eval.every": epochs + 1, "log_every": 50}
    settings |= {"optim.lr": RATE, "optim.weight_decay": DECAY, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        data, options = arrays["train"], {"epochs": epochs, "workdir": folder, **settings}
        jaxssl.train("studies:small", data=data, loss="nt_xent", **options)
        lines = [json.loads(x) for x in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        logged = [x for x in lines if "loss" in x]
        intervals = [(a, b) for a, b in itertools.pairwise(logged) if b["epoch"] > 1]
        speeds = [later["images_per_second"] for _, later in intervals]
        steps = [later["step"] - earlier["step"] for earlier, later in intervals]
        features = {name: np.asarray(jaxssl.embed(folder, x)) for name, x in arrays.items()}
    # Weighted by the steps, the mean is all images over the whole time.
    return statistics.harmonic_mean(speeds, steps), features


def lightly(arrays: Arrays, epochs: int, seed: int, workers: int) -> tuple[float, Arrays]:
    """Return the images per second and features of a loop as lightly's documentation has it."""
    import torch
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from PIL import Image
    from torch import nn
    from torch_step import convolutions

    torch.manual_seed(seed)

    class Pictures(torch.utils.data.Dataset):
        # The views of `studies:small`. Half of lightly's default strength is 0.4, and 0.1 of hue.
        transform = SimCLRTransform(
            SIZE, cj_strength=0.5, min_scale=0.08, gaussian_blur=0.0, normalize=None
        )
        pictures = tuple(Image.fromarray(image) for image in arrays["train"])

        def __len__(self) -> int:
            return len(self.pictures)

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
    backbone = nn.Sequential(*convolutions(3, (32, 64, 128), (2, 2, 2)))
    head = [nn.Linear(128, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128)]
    net = nn.Sequential(backbone, *head)
    loss_fn = NTXentLoss(temperature=TEMPERATURE)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE)
    warm, steps = len(loader), epochs * len(loader)

    def factor(step: int) -> float:
        if step < warm:
            return step / warm
        return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    start = 0.0
    for epoch in range(epochs):
        if epoch == 1:
            start = time.perf_counter()
        for views in loader:
            optimiser.zero_grad()
            loss_fn(net(views[0]), net(views[1])).backward()
            optimiser.step()
            schedule.step()
    speed = (epochs - 1) * len(loader) * BATCH / (time.perf_counter() - start)
    net.eval()
    features = {}
    with torch.no_grad():
        for split, images in arrays.items():
            x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
            features[split] = torch.cat([backbone(part) for part in x.split(500)]).numpy()
    return speed, features


CONTENDERS = {
    "jaxssl": ours,
    "lightly, 0 workers": partial(lightly, workers=0),
    "lightly, 2 workers": partial(lightly, workers=2),
}


def main() -> None:
    """Run all contenders in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, help="the Python that has lightly")
    parser.add_argument("--data", type=Path, help="archive of pictures SPLIT/CLASS/NAME")
    parser.add_argument("--task", nargs=3, metavar=("NAME", "SEED", "FILE"), help="for itself")
    args = parser.parse_args()
    if args.task:  # one contender, whose result replaces the arrays in FILE
        name, seed, path = args.task
        arrays = dict(np.load(path))
        epochs = EPOCHS if "test" in arrays else SPEED_EPOCHS
        speed, features = CONTENDERS[name](arrays, epochs, int(seed))
        np.savez(path, speed=speed, **features)
        return
    sys.path.insert(0, str(ROOT))
    from shared import spread  # imports JAX, which the Python with lightly may lack

    from jaxssl.evaluation.protocols import knn

    arrays, labels = read_pictures(args.data) if args.data else (random_images(), {})
    # Accuracy does not depend on the number of workers.
    names = list(CONTENDERS)[: 2 if args.data else 3]
    speeds, accuracies = {name: [] for name in names}, {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        for seed in range(args.rounds):
            for name in names:
                np.savez(path, **arrays)
                python = sys.executable if name == "jaxssl" else args.peer
                command = [python, __file__, "--task", name, str(seed), str(path)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                result = np.load(path)
                speeds[name].append(float(result["speed"]))
                if args.data:
                    bank, test = ((result[x], labels[x]) for x in ("train", "test"))
                    found = knn.evaluate(*bank, *test, k=200, temperature=0.1)
                    accuracies[name].append(found["knn_top1"])
    for name in names:
        print(f"{name:<20} images/s {spread(speeds[name], digits=0)}")
        if args.data:
            print(f"{'':<20} k-NN {spread(accuracies[name], digits=1)}")


if __name__ == "__main__":
    main()
