"""Records of made-up figures."""

import record as book

DEVICE = book.Device("some GPU, 16 cores", 100.0, 16)


def figure(values=None, **changes):
    usual = {"settings": {}, "commit": "abc", "device": DEVICE.name, "versions": {"jax": "1.2"}}
    return {**usual, "minutes": 3.0, "values": values or {}, **changes}


def a_record(figures=(), scale="tiny", **parts):
    return {"scale": scale, "figures": dict(figures), "unfinished": {}, "failed": {}, **parts}


def accuracies(knn, linear, epoch=4.0):
    return {"epoch": epoch, "knn 0.1": knn, "knn 0.5": knn - 1, "linear": linear}


def a_run(knn, **changes):
    about = {"data": "digits", "epochs": 4, "images_per_second": 1234.5, "curve": []}
    return figure(
        {**about, "last": accuracies(knn, 95.0), "best": accuracies(knn + 1, 96.0)} | changes
    )
