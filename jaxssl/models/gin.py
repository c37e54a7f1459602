"""GIN, the graph isomorphism network, on packed graphs."""

import flax.linen as nn
import jax
from jax import Array
from jax import numpy as jnp

from jaxssl.models._layers import TORCH_KERNEL_INIT, MaskedBatchNorm, require_min, sum_dtype

EXAMPLES = "graph"


class GIN(nn.Module):
    r"""Graph isomorphism network (GIN) with a BatchNorm after each layer.

    .. math:: h_v \leftarrow BN(ReLU(MLP(h_v + \sum_{u \sim v} h_u)))

    The features of a graph are the sums over its nodes after each layer, concatenated.

    See `net` for the attributes.
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
        """Map r rows of k packed graphs each to features [r * k, layers * width].

        Args:
            x: packed graphs as in `jaxssl.augment.graph`, with float "x".
            train: whether BatchNorm uses the statistics of the batch, over all real nodes.
            axis_name: name of the mapped axis whose devices share the batch, or None.
            keys: not used, because the network draws no random numbers.

        Raises:
            ValueError: if ``x`` is not a dict.
        """
        if not isinstance(x, dict):
            raise ValueError(
                f"net.name='gin' takes graphs, got an array {list(x.shape)}; set "
                "augment.name=graph or another network"
            )
        rows, n, _ = x["x"].shape
        k = x["size"].shape[1]
        row = jnp.arange(rows, dtype=jnp.int32)
        # Nodes and graphs are numbered consecutively over all rows. Padding, dropped nodes and
        # dropped edges get the first index out of range, which the gathers and scatters below
        # ignore.
        is_node = x["graph"] < k
        graph = jnp.where(is_node, x["graph"] + k * row[:, None], rows * k).reshape(-1)
        is_node = is_node.reshape(-1)
        edge = jnp.where(x["edge"] < n, x["edge"] + n * row[:, None, None], rows * n).reshape(-1, 2)
        h = jnp.where(is_node[:, None], x["x"].reshape(rows * n, -1), 0)
        features = []
        for _ in range(self.layers):
            h = h + _sum_neighbours(h, edge)
            h = nn.relu(nn.Dense(self.width, kernel_init=TORCH_KERNEL_INIT)(h))
            h = nn.relu(nn.Dense(self.width, kernel_init=TORCH_KERNEL_INIT)(h))
            h = MaskedBatchNorm(not train, axis_name)(h, is_node)
            # Some edges still point to dropped nodes. The features of these nodes are set to 0, so
            # that they add nothing to their neighbours.
            h = jnp.where(is_node[:, None], h, 0)
            sums = jax.ops.segment_sum(h.astype(sum_dtype(h)), graph, rows * k)
            features.append(sums.astype(h.dtype))
        return jnp.concatenate(features, axis=1)


def net(*, width: int = 32, layers: int = 3) -> nn.Module:
    """Build a GIN with ``layers * width`` features.

    Args:
        width: width of each layer, >= 1.
        layers: number of layers, >= 1.

    Raises:
        ValueError: if a value is below 1.

    References:
        Xu et al., How Powerful are Graph Neural Networks?, 2019, eq. 4.1 with epsilon 0; BatchNorm
        after each MLP and sums of all layers as in GraphCL's released code. Kernels are initialised
        as in PyTorch.
    """
    require_min(1, width=width, layers=layers)
    return GIN(width, layers)


def _sum_neighbours(h: Array, edge: Array) -> Array:
    """Sum the features of each node's neighbours. Edges are undirected."""
    # The conversion comes before the reading, so that gradients are added in float32 too.
    ends = h.astype(sum_dtype(h)).at[edge].get(mode="fill", fill_value=0)
    total = jnp.zeros(h.shape, ends.dtype).at[edge[:, 0]].add(ends[:, 1], mode="drop")
    return total.at[edge[:, 1]].add(ends[:, 0], mode="drop").astype(h.dtype)
