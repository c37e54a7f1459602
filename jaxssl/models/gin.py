"""The graph isomorphism network: sums over neighbours, of graphs packed into rows."""

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.models._norms import masked_batch_norm

EXAMPLES = "graph"
# PyTorch's, which the released codes keep.
KERNEL_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class GIN(nn.Module):
    r"""Layers of a perceptron on each node and the sum of its neighbours.

    .. math:: h_v \leftarrow BN(ReLU(MLP(h_v + \sum_{u \sim v} h_u)))

    The features of a graph are the sums over its nodes after each layer, one beside the other.

    Attributes:
        width: of each layer.
        layers: how many.
    """

    width: int
    layers: int

    @nn.compact
    def __call__(
        self,
        x: dict[str, Array],
        *,
        train: bool,
        axis_name: str | None = None,
        keys: Array | None = None,
    ) -> Array:
        """Packed graphs (`jaxssl.augment.graph`), r rows of k, to features [r k, layers width].

        BatchNorm's statistics are those of the nodes there are. ``keys`` are not used.
        """
        del keys
        if not isinstance(x, dict):
            raise ValueError('net "gin" takes graphs, not images; set augment.name=graph')
        rows, n, _ = x["x"].shape
        k = x["size"].shape[1]
        row = jnp.arange(rows, dtype=jnp.int32)
        # All rows as one: what is of no graph goes beyond the last one.
        there = x["graph"] < k
        graph = jnp.where(there, x["graph"] + k * row[:, None], rows * k).reshape(-1)
        there = there.reshape(-1)
        edge = jnp.where(x["edge"] < n, x["edge"] + n * row[:, None, None], rows * n).reshape(-1, 2)
        h = jnp.where(there[:, None], x["x"].reshape(rows * n, -1), 0)
        features = []
        for _ in range(self.layers):
            h = h + _of_neighbours(h, edge)
            h = nn.relu(nn.Dense(self.width, kernel_init=KERNEL_INIT)(h))
            h = nn.relu(nn.Dense(self.width, kernel_init=KERNEL_INIT)(h))
            h = masked_batch_norm(h, there, train=train, axis_name=axis_name)
            # What is not there must not reach its neighbours, nor the sum.
            h = jnp.where(there[:, None], h, 0)
            features.append(jax.ops.segment_sum(h, graph, rows * k))
        return jnp.concatenate(features, axis=1)


def net(*, width: int = 32, layers: int = 3) -> nn.Module:
    """A `GIN`; features have ``layers * width`` entries.

    Args:
        width: of each layer, >= 1.
        layers: how many, >= 1.

    Raises:
        ValueError: on a value below 1.

    References:
        Xu et al., How Powerful are Graph Neural Networks?, 2019, eq. 4.1 with epsilon 0; in the
        form of GraphCL's released code: BatchNorm after each perceptron, sums of all layers.
    """
    for name, value in (("width", width), ("layers", layers)):
        if value < 1:
            raise ValueError(f"net.{name} must be >= 1, got {value}")
    return GIN(width, layers)


def _of_neighbours(h: Array, edge: Array) -> Array:
    """The sum over neighbours of each node; edges lead both ways."""
    of = h.at[edge].get(mode="fill", fill_value=0)
    total = jnp.zeros_like(h).at[edge[:, 0]].add(of[:, 1], mode="drop")
    return total.at[edge[:, 1]].add(of[:, 0], mode="drop")
