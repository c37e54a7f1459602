"""GraphCL's views of graphs."""

from jaxssl.augment import graph as graph_ops
from jaxssl.augment.recipes._common import check_probabilities

EXAMPLES = "graph"  # what the views are of, if not of images alone


def recipe(
    *,
    choices: tuple[str, ...] = ("drop_nodes", "subgraph"),
    drop: float = 0.1,
    perturb: float = 0.1,
    add: bool = True,
    mask: float = 0.1,
    keep: float = 0.8,
) -> graph_ops.Recipe:
    """GraphCL's: each graph is changed in one way, drawn from ``choices``; none changes nothing.

    Args:
        choices: some of "drop_nodes", "perturb_edges", "mask_attributes", "subgraph". GraphCL's
            random2 is the first and the last, random3 adds "perturb_edges", random4 is all.
        drop: share of the nodes that "drop_nodes" takes away with their edges.
        perturb: share of the edges that "perturb_edges" takes away.
        add: whether it puts as many random edges in their place.
        mask: share of the nodes whose features "mask_attributes" replaces by noise.
        keep: share of the nodes that "subgraph" keeps.

    Raises:
        ValueError: on an unknown choice, or a share outside [0, 1].

    References:
        You et al., Graph Contrastive Learning with Augmentations, 2020, table 1 and appendix A. The
        released code differs: its "perturb_edges" adds none (``add=False``), its "subgraph" keeps a
        share of 0.2 and never looks beyond the neighbours of the first node, and nodes that have no
        edge left are dropped.
    """
    check_probabilities(drop=drop, perturb=perturb, mask=mask, keep=keep)
    unknown = sorted(set(choices) - set(graph_ops.CHOICES))
    if unknown:
        known = ", ".join(graph_ops.CHOICES)
        raise ValueError(f"augment.choices has {unknown[0]!r}; expected some of {known}")
    shares = {"drop": drop, "perturb": perturb, "add": add, "mask": mask, "keep": keep}
    return graph_ops.one_of(choices, **shares)
