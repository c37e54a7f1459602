"""Settings and inputs that networks and heads refuse."""

import jax
import pytest
from jax import numpy as jnp
from net_cases import KEY, init_shapes

from jaxssl.models import clip_resnet, convnet, convnext, gin, heads, resnet, s3d, text, vit

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (resnet.net, {"depth": 19}, r"net.depth must be one of .*101.*, got 19"),
        (resnet.net, {"stem": "cifer"}, "net.stem must be one of .*'cifar'.* got 'cifer'"),
        (resnet.net, {"width": 0}, "net.width must be >= 1, got 0"),
        (resnet.net, {"width": 1, "stem": "deep"}, "net.width must be >= 2, got 1"),
        (
            resnet.net,
            {"depth": 50, "width": 8, "base_width": 4},
            r"net.width \* net.base_width must be >= 64, .* got 8 \* 4",
        ),
        (convnet.net, {"widths": (8, 16), "strides": (2,)}, r"net.strides \(2,\) must have equal"),
        (convnet.net, {"widths": (8, 0), "strides": (2, 2)}, "net.widths must be >= 1, got 0"),
        (convnet.net, {"widths": (), "strides": ()}, "net.widths must be >= 1, got 0"),
        (convnet.net, {"widths": (8,), "strides": (0,)}, "net.strides must be >= 1, got 0"),
        (convnext.net, {"depths": (), "widths": ()}, "net.depths must be >= 1, got 0"),
        (convnext.net, {"epsilon": 0.0}, "net.epsilon must be > 0, got 0.0"),
        (heads.mlp, {"proj_norm": "ln"}, r"proj_norm must be one of \('bn', 'none'\), got 'ln'"),
        (heads.mlp, {"proj_last_norm": "fixed"}, "proj_last_norm must be .*'bn_fixed'.*'fixed'"),
        (heads.mlp, {"proj_activation": "tanh"}, "proj_activation must be one of .* got 'tanh'"),
        (heads.mlp, {"proj_layers": -1}, "proj_layers must be >= 0, got -1"),
        (heads.mlp, {"proj_output_dim": 0}, "proj_output_dim must be >= 1, got 0"),
        (heads.predictor, {"pred_norm": "b"}, "pred_norm must be one of .* got 'b'"),
        (heads.predictor, {"pred_hidden_dim": 0}, "pred_hidden_dim must be >= 1, got 0"),
        (heads.dino, {"proj_layers": 0}, "proj_layers must be >= 1, got 0"),
        (clip_resnet.net, {"size": "52"}, "net.size must be one of .*'50x4'.* got '52'"),
        (clip_resnet.net, {"stem": "wide"}, "net.stem must be one of .*'cifar'.* got 'wide'"),
        (clip_resnet.net, {"width": 5}, "net.width must be even and >= 2, got 5"),
        (clip_resnet.net, {"dim": 0}, "net.dim must be >= 1, got 0"),
        (clip_resnet.net, {"num_heads": 0}, "net.num_heads must divide .* 2560, got 0"),
        (clip_resnet.net, {"num_heads": 3}, "net.num_heads must divide .* 2560, got 3"),
        (vit.net, {"size": "huge"}, "net.size must be one of .*'base'.* got 'huge'"),
        (vit.net, {"pool": "max"}, "net.pool must be one of .*'mean'.* got 'max'"),
        (vit.net, {"positions": "none"}, "net.positions must be one of .* got 'none'"),
        (vit.net, {"drop_path": 1.0}, r"net.drop_path must be in \[0, 1\), got 1.0"),
        (vit.net, {"patch_size": 0}, "net.patch_size must be >= 1, got 0"),
        (vit.net, {"num_heads": 0}, "net.num_heads must be >= 1, got 0"),
        (vit.net, {"mlp_dim": 0}, "net.mlp_dim must be >= 1, got 0"),
        (vit.net, {"epsilon": 0.0}, "net.epsilon must be > 0, got 0.0"),
        (vit.net, {"num_heads": 5}, "net.dim must be .* net.num_heads=5, got 384"),
        (vit.net, {"dim": 6, "num_heads": 2}, "net.dim must be a multiple of 4 .*, got 6"),
        (
            vit.net,
            {"dim": 12, "num_heads": 2, "positions": "rotary"},
            "multiple of 4 for rotary .* 6",
        ),
        (text.net, {"activation": "relu"}, "text.activation must be one of .*'gelu'.* 'relu'"),
        (text.net, {"layers": 0}, "text.layers must be >= 1, got 0"),
        (text.net, {"num_heads": 0}, "num_heads must be >= 1, got 0"),
        (text.net, {"vocabulary": 0}, "text.vocabulary must be >= 1, got 0"),
        (text.net, {"num_heads": 5}, "multiple of text.num_heads=5, got 512"),
        (s3d.net, {"width": 0}, "net.width must be > 0, got 0"),
        (gin.net, {"width": 0}, "net.width must be >= 1, got 0"),
        (gin.net, {"layers": 0}, "net.layers must be >= 1, got 0"),
    ],
)
def test_invalid_settings_raise_an_error_that_names_them(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


POOLED = clip_resnet.ClipResNet(stages=(1,), width=4, heads=2, dim=3, stem="cifar")
LEARNED = vit.net(dim=8, layers=1, num_heads=2, patch_size=2, positions="learned")


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (LEARNED, (2, 8, 3), "expected 2 x 2 patches, got 1 x 4"),
        (clip_resnet.net(), (31, 64, 3), ">= 32 pixels a side, got 31 x 64"),
        (convnext.net(), (31, 64, 3), ">= 32 pixels a side, got 31 x 64"),
        (convnext.net(depths=(1, 1), widths=(4, 4)), (8, 7, 3), ">= 8 pixels a side, got 8 x 7"),
        (POOLED, (8, 16, 3), "expected 11 x 11 patches, got 8 x 16"),
        (POOLED, (8, 4, 3), "pixels a side, got 8 x 4"),
        (vit.net(patch_size=2, dim=12), (4, 5, 3), "multiples of net.patch_size=2, got 4 x 5"),
        (s3d.net(), (4, 32, 32, 3), "5 frames of 17 x 17 .* got 4 of 32 x 32"),
        (s3d.net(), (8, 32, 16, 3), "5 frames of 17 x 17 .* got 8 of 32 x 16"),
    ],
)
def test_networks_refuse_inputs_of_unsupported_size(net, shape, message):
    with pytest.raises(ValueError, match=message):
        init_shapes(net, 1, *shape)


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        (POOLED, (16, 16), "a square grid, expected 8 x 8 patches, got 16 x 16"),
        (LEARNED, (16, 16), "expected 4 x 4 patches, got 8 x 8"),
        (LEARNED, (4, 8), "expected 4 x 4 patches, got 2 x 4"),
    ],
)
def test_images_that_do_not_fit_the_trained_positions_are_refused(net, shape, message):
    variables, _ = init_shapes(net, 1, 8, 8, 3)
    images = jnp.zeros((1, *shape, 3))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda v: net.apply(v, images, train=False), variables)


def test_texts_that_are_longer_than_the_context_are_refused():
    texts = jax.ShapeDtypeStruct((2, 7), jnp.int32)
    with pytest.raises(ValueError, match="at most text.context=6 tokens, got 7"):
        jax.eval_shape(lambda x: text.net(context=6).init(KEY, x, train=False), texts)
