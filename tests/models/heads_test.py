"""Heads: layers against the papers, the MLP against NumPy, properties of DINO's scores."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from net_cases import KEY, count_params, exact_gelu, init_shapes, normal

from jaxssl.models import heads

pytestmark = pytest.mark.fast

# method: (head, input dimension, layers in order); "+b" marks a Dense layer with a bias
MLP, PREDICTOR = heads.mlp, heads.predictor
WIDE = {"proj_hidden_dim": 4096, "proj_output_dim": 256, "proj_last_norm": "bn_fixed"}
MOCO = PREDICTOR(pred_last_norm="bn_fixed")
BARLOW = {"proj_hidden_dim": 8192, "proj_output_dim": 8192, "proj_last_bias": False}
PAPERS = {
    "swav": (MLP(), 2048, "2048x2048 bn 2048x128+b"),
    "moco_v3": (MLP(**WIDE, proj_layers=3), 384, "384x4096 bn 4096x4096 bn 4096x256 bn_fixed"),
    "barlow_vicreg": (MLP(**BARLOW, proj_layers=3), 2048, "2048x8192 bn 8192x8192 bn 8192x8192"),
    "tcl": (MLP(proj_hidden_dim=512, proj_norm="none"), 512, "512x512+b 512x128+b"),
    "mmcl_imagenet": (MLP(proj_last_norm="bn_scale"), 2048, "2048x2048 bn 2048x128 bn_scale"),
    "last_bn": (MLP(proj_layers=1, proj_last_norm="bn"), 512, "512x128 bn"),
    "moco_v3_predictor": (MOCO, 256, "256x4096 bn 4096x256 bn_fixed"),
    "byol_predictor": (PREDICTOR(), 256, "256x4096 bn 4096x256+b"),
    "plain_predictor": (PREDICTOR(pred_hidden_dim=8, pred_norm="none"), 4, "4x8+b 8x4+b"),
}
NORM_PARAMS = {"bn": ["bias", "scale"], "bn_scale": ["scale"], "bn_fixed": []}


@pytest.mark.parametrize("name", PAPERS)
def test_head_has_the_layers_of_its_paper(name):
    head, features, layers = PAPERS[name]
    variables, out = init_shapes(head, 2, features)
    params, stats = variables["params"], variables.get("batch_stats", {})
    dense = norms = total = width = 0
    for layer in layers.split():
        if layer in NORM_PARAMS:
            assert sorted(params.get(f"BatchNorm_{norms}", {})) == NORM_PARAMS[layer]
            assert stats[f"BatchNorm_{norms}"]["mean"].shape == (width,)
            total += width * len(NORM_PARAMS[layer])
            norms += 1
        else:
            inputs, width = map(int, layer.removesuffix("+b").split("x"))
            bias = layer.endswith("+b")
            assert params[f"Dense_{dense}"]["kernel"].shape == (inputs, width)
            assert ("bias" in params[f"Dense_{dense}"]) == bias
            total += inputs * width + bias * width
            dense += 1
    assert (count_params(variables), len(stats), out.shape) == (total, norms, (2, width))


def test_head_with_zero_layers_returns_the_features():
    x = normal(3, 5)
    out, variables = heads.mlp(proj_layers=0).init_with_output(KEY, x, train=True)
    assert out is x and not variables


@pytest.mark.parametrize("norm", ["bn", "none"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_mlp_equals_numpy(norm, activation):
    sizes = {"proj_hidden_dim": 6, "proj_output_dim": 3, "proj_last_norm": "bn_fixed"}
    head = heads.mlp(**sizes, proj_norm=norm, proj_activation=activation)
    x = normal(8, 5)
    variables = jax.jit(partial(head.init, train=False))(KEY, x)
    out, _ = jax.jit(partial(head.apply, train=True, mutable=["batch_stats"]))(variables, x)
    normed = lambda y: (y - y.mean(0)) / np.sqrt(y.var(0) + 1e-5)  # noqa: E731
    kernels = [np.asarray(variables["params"][f"Dense_{i}"]["kernel"], np.float64) for i in (0, 1)]
    y = np.asarray(x, np.float64) @ kernels[0]
    y = normed(y) if norm == "bn" else y
    y = np.maximum(y, 0) if activation == "relu" else exact_gelu(y)
    np.testing.assert_allclose(out, normed(y @ kernels[1]), rtol=1e-4, atol=1e-4)


def test_batch_norm_of_embeddings_near_collapse_is_exact():
    x = 1000 + normal(64, 3)
    head = heads.mlp(proj_layers=1, proj_output_dim=3, proj_last_norm="bn_fixed")
    variables = jax.jit(partial(head.init, train=False))(KEY, x)
    variables = variables | {"params": {"Dense_0": {"kernel": jnp.eye(3)}}}
    out, _ = jax.jit(partial(head.apply, train=True, mutable=["batch_stats"]))(variables, x)
    exact = np.asarray(x, np.float64)
    normed = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-5)
    np.testing.assert_allclose(out, normed, atol=2e-3)


@pytest.mark.parametrize("norm_last_layer", [True, False])
def test_dino_head_has_the_parameter_count_of_the_released_one(norm_last_layer):
    variables, out = init_shapes(heads.dino(norm_last_layer=norm_last_layer), 2, 384)
    layers = 384 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 256 + 256
    lengths = 0 if norm_last_layer else 65536
    assert count_params(variables) == layers + 256 * 65536 + lengths
    assert out.shape == (2, 65536)


@pytest.mark.parametrize("norm_last_layer", [True, False])
def test_dino_scores_are_cosines_with_the_prototypes(norm_last_layer):
    sizes = {"proj_hidden_dim": 16, "proj_bottleneck_dim": 6, "proj_output_dim": 40}
    head = heads.dino(**sizes, norm_last_layer=norm_last_layer)
    x = normal(7, 5)
    variables = jax.jit(partial(head.init, train=False))(KEY, x)
    # Scaling the prototypes must not change the scores.
    params = variables["params"] | {"prototypes": 3 * variables["params"]["prototypes"]}
    run = jax.jit(partial(head.apply, train=True))
    out = run(variables, x)
    np.testing.assert_allclose(run({"params": params}, x), out, atol=1e-6)
    assert np.abs(out).max() <= 1 + 1e-6
    # With prototypes along the axes, scores are the entries of the normalised bottleneck.
    axes = jnp.concatenate([2 * jnp.eye(6), jnp.ones((6, 34))], axis=1)
    scores = run({"params": params | {"prototypes": axes}}, x)
    np.testing.assert_allclose(np.linalg.norm(scores[:, :6], axis=1), 1, rtol=1e-5)
    along_ones = np.sum(scores[:, :6], axis=1, keepdims=True) / 6**0.5
    np.testing.assert_allclose(scores[:, 6:], np.repeat(along_ones, 34, axis=1), atol=1e-5)
    if not norm_last_layer:
        length = jnp.arange(40.0)
        scaled = run({"params": variables["params"] | {"prototype_length": length}}, x)
        np.testing.assert_allclose(scaled, np.asarray(out) * np.arange(40), atol=1e-5)


def test_dino_head_initialisation_follows_the_released_code():
    head = heads.dino(proj_hidden_dim=64, proj_bottleneck_dim=64, proj_output_dim=64)
    params = jax.jit(partial(head.init, train=False))(KEY, jnp.zeros((1, 64)))["params"]
    for i in range(3):
        np.testing.assert_allclose(np.std(params[f"Dense_{i}"]["kernel"]), 0.02, rtol=0.05)
        assert not params[f"Dense_{i}"]["bias"].any()
    np.testing.assert_allclose(np.abs(params["prototypes"]).max(), 1 / 8, rtol=0.01)


def test_dino_head_gives_zero_scores_and_gradients_for_a_zero_bottleneck():
    head = heads.dino(proj_hidden_dim=4, proj_bottleneck_dim=3, proj_output_dim=5, proj_layers=2)

    def score(x):
        params = head.init(KEY, x, train=False)["params"]
        loss = lambda params, x: (head.apply({"params": params}, x, train=True) ** 2).sum()  # noqa: E731
        return head.apply({"params": params}, x, train=True), jax.grad(loss, (0, 1))(params, x)

    out, grads = jax.jit(score)(jnp.zeros((2, 4)))
    assert not out.any()
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads))
