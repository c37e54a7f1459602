"""GraphCL's augmentation of graphs."""

from jaxssl.augment import graph as graph_ops
from jaxssl.augment.recipes._common import require_fractions

EXAMPLES = "graph"


def recipe(
    *,
    choices: tuple[str, ...] = ("drop_nodes", "subgraph"),
    drop: float = 0.1,
    perturb: float = 0.1,
    add: bool = True,
    mask: float = 0.1,
    keep: float = 0.8,
) -> graph_ops.Recipe:
    """Build GraphCL's augmentation: one operation per graph, drawn from ``choices``.

    Args:
        choices: any of "drop_nodes", "perturb_edges", "mask_attributes", "subgraph"; none leaves
            graphs unchanged. GraphCL's random2 is the first and the last, random3 adds
            "perturb_edges", random4 is all.
        drop: fraction of the nodes that "drop_nodes" removes with their edges.
        perturb: fraction of the edges that "perturb_edges" removes.
        add: whether "perturb_edges" adds as many random edges.
        mask: fraction of the nodes that get noise as features from "mask_attributes".
        keep: fraction of the nodes that "subgraph" keeps.

    Raises:
        ValueError: if a choice is unknown, or a fraction is outside of [0, 1].

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, table 1 and appendix A. In
        the released code, "perturb_edges" adds no edges (``add=False``), "subgraph" keeps a
        fraction of 0.2 and only grows to neighbours of the first node, and isolated nodes are
        dropped.
    """
    fractions = {"drop": drop, "perturb": perturb, "mask": mask, "keep": keep}
    require_fractions(**fractions)
    for choice in choices:
        if choice not in graph_ops.CHOICES:
            options = ", ".join(graph_ops.CHOICES)
            raise ValueError(f"augment.choices must be any of {options}, got {choice!r}")
    return graph_ops.one_of(choices, **fractions, add=add)
