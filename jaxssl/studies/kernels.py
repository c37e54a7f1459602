"""MMCL's kernels: linear, tanh and rbf."""

from jaxssl.grid import (
    KNN,
    LINEAR,
    METHODS,
    accuracy_picture,
    accuracy_table,
    baselines,
    numbers,
    run_grid,
    values,
    where,
)
from jaxssl.study import Claim, Findings, Setting, Table, all_of, larger

KERNELS = ("linear", "tanh", "rbf")
CLAIMS = {
    "rbf_best": Claim("The rbf kernel is above tanh and linear (k-NN)", "MMCL, Table 6"),
}
PUBLISHED = Table(
    "Published: k-NN at 200 epochs (MMCL Table 6)",
    ("kernel", "CIFAR-100", "STL-10"),
    (("linear", "41.43", "74.82"), ("tanh", "54.53", "80.5"), ("rbf", "55.35", "81.33")),
)


def run(setting: Setting) -> Findings:
    """Train with each kernel; gamma is 0.5 for rbf and 1 for tanh, whose best is unstated."""
    own = {"tanh": {"loss.gamma": 1.0}}
    cells = {
        ("mmcl", name): {**METHODS["mmcl"], "loss.kernel": name, **own.get(name, {})}
        for name in KERNELS
    }
    found = run_grid(setting, cells)
    base = baselines(found["mmcl", "rbf"][0])
    best = {
        f"over {name}": larger(values(found["mmcl", "rbf"], KNN), values(found["mmcl", name], KNN))
        for name in ("tanh", "linear")
    }
    tables = [
        accuracy_table(found, ("mmcl",), KERNELS, "kernel", metric, base)
        for metric in (KNN, LINEAR)
    ]
    data = {"results": numbers(found), "baselines": base}
    picture = accuracy_picture(found, ("mmcl",), KERNELS, "kernel", KNN, base)
    return Findings([*tables, PUBLISHED], [picture], {"rbf_best": all_of(best)}, data, where(found))
