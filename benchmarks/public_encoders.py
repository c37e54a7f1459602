"""Compare encoders of torchvision, timm, transformers and open_clip with our reading of them.

    python benchmarks/public_encoders.py --record    # tests/golden/encoders.npz, tiny networks
    python benchmarks/public_encoders.py             # 29 typical encoders at full size

Needs torch, torchvision, timm, transformers and open_clip_torch. Weights are random; see
`draw_arrays` in tests/weights_cases.py. The figures are the largest difference of the features,
relative to the largest feature, and the time of loading.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import open_clip
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.numpy import load_file, save_file
from timm.data.transforms_factory import create_transform
from timm.layers import GluMlp
from timm.models.convnext import ConvNeXt
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional
from torchvision.models.convnext import CNBlockConfig

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from weights_cases import draw_arrays, draw_picture  # noqa: E402

import jaxssl  # noqa: E402
from jaxssl.augment.views import Inputs  # noqa: E402

Features = Callable[[Any, torch.Tensor], torch.Tensor]


class Source(NamedTuple):
    """A public encoder of another library, with which our reading is compared.

    Attributes:
        model: its module.
        features: maps the module and images to features.
        size: side of the images in pixels.
        options: arguments of `jaxssl.load_encoder`.
        files: JSON files beside the weights, by name.
        rename: maps an array's name in the module to its name in the file.
        extra: shapes of further arrays in the file.
        resize: maps the module to one for images of `size` pixels.
    """

    model: Any
    features: Features
    size: int
    options: dict[str, Any] = {}
    files: dict[str, Any] = {}
    rename: Callable[[str], str] = str
    extra: dict[str, list[int]] = {}
    resize: Callable[[Any], Any] = lambda model: model


def head(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.forward_head(model.forward_features(x), pre_logits=True)


def token(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.forward_features(x)[:, 0]


def pooled(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).pooler_output.flatten(1)


def hidden(model: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return model(x, **options).last_hidden_state[:, 0]


def without(name: str) -> Features:
    def features(model: Any, x: torch.Tensor) -> torch.Tensor:
        setattr(model, name, torch.nn.Identity())
        return model(x)

    return features


def tv_convnext(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.classifier[2] = torch.nn.Identity()
    return model(x)


def dino_positions(model: Any, size: int) -> Any:
    """Interpolate the positions as the code of DINO and DINOv2 does."""
    table, patch = model.pos_embed, model.patch_embed.patch_size[0]
    old = round((table.shape[1] - 1) ** 0.5)
    grid = table[:, 1:].reshape(1, old, old, -1).permute(0, 3, 1, 2)
    factor = (size // patch + 0.1) / old
    grid = functional.interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
    model.set_input_size(size)
    rows = grid.permute(0, 2, 3, 1).flatten(1, 2)
    model.pos_embed = torch.nn.Parameter(torch.cat([table[:, :1], rows], 1))
    return model


def resized(model: Any, size: int) -> Any:
    model.set_input_size(size)
    return model


def eva(small: dict[str, Any], **options: Any) -> Any:
    return Eva(
        **small,
        qkv_bias=False,
        init_values=1e-5,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        num_reg_tokens=4,
        use_fc_norm=False,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-5),
        num_classes=0,
        **options,
    )


def both_tokens(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).last_hidden_state[:, :2].mean(1)


def mae(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.config.mask_ratio = 0.0
    patches = (x.shape[-1] // model.config.patch_size) ** 2
    return hidden(model, x, noise=torch.arange(patches)[None].repeat(len(x), 1).float())


def described(source: Source, size: int) -> Source:
    """Add the JSON file in which transformers stores the preprocessing, for images of this size."""
    side = {"height": size, "width": size}
    config = {"size": {"shortest_edge": 16}, "crop_size": side, "do_center_crop": True}
    config |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "resample": 3}
    return source._replace(files={"preprocessor_config.json": config})


def tiny() -> dict[str, Callable[[], Source]]:
    small: dict[str, Any] = dict(img_size=16, patch_size=4, embed_dim=128, depth=2, num_heads=2)
    hf: dict[str, Any] = dict(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    wide = dict(hf, intermediate_size=192)
    net = dict(
        embed_dim=32, text_cfg=dict(context_length=4, vocab_size=9, width=64, heads=1, layers=1)
    )
    tower = dict(image_size=16, layers=2, width=128, head_width=64, patch_size=4)
    convolutions = dict(image_size=64, layers=(3, 4, 6, 3), width=8, head_width=64)
    vit = partial(VisionTransformer, **small)
    swiglu = dict(mlp_layer=partial(GluMlp, gate_last=False), act_layer=torch.nn.SiLU, mlp_ratio=3)
    resnet = partial(ResNet, num_classes=3)
    stages = [
        CNBlockConfig(8, 16, 1),
        CNBlockConfig(16, 24, 2),
        CNBlockConfig(24, 32, 1),
        CNBlockConfig(32, None, 1),
    ]
    t = transformers

    def family(kind: str, features: Features = pooled, size: int = 16, **config: Any) -> Source:
        model = getattr(t, kind)(getattr(t, kind.removesuffix("Model") + "Config")(**config))
        return Source(model.eval(), features, size)

    def clip(quick: bool, extra: dict[str, list[int]], vision: dict[str, Any] = tower) -> Source:
        model = open_clip.model.CLIP(vision_cfg=vision, quick_gelu=quick, **net)
        size = vision["image_size"]
        return Source(model.eval(), lambda m, x: m.encode_image(x), size, extra=extra)

    openai = {name: [] for name in ("input_resolution", "context_length", "vocab_size")}
    return {
        "timm_vit": lambda: Source(vit(num_classes=5), head, 16),
        "timm_vit_mean": lambda: Source(
            vit(num_classes=0, global_pool="avg", fc_norm=False), head, 16, {"pool": "mean"}
        ),
        "timm_vit_larger": lambda: Source(
            vit(num_classes=0), head, 24, {"size": 24}, resize=partial(resized, size=24)
        ),
        "timm_vit_smaller": lambda: Source(
            vit(num_classes=0), head, 12, {"size": 12}, resize=partial(resized, size=12)
        ),
        "timm_dinov2": lambda: Source(vit(num_classes=0, init_values=1e-5), head, 16),
        "timm_dinov2_registers_swiglu": lambda: Source(
            vit(num_classes=0, init_values=1, reg_tokens=4, no_embed_class=True, **swiglu), head, 16
        ),
        "dinov2_larger": lambda: Source(
            vit(num_classes=0, init_values=1e-5),
            head,
            24,
            {"size": 24},
            extra={"mask_token": [1, 128]},
            resize=partial(dino_positions, size=24),
        ),
        "timm_clip": lambda: Source(
            vit(pre_norm=True, norm_layer=partial(torch.nn.LayerNorm, eps=1e-5), num_classes=3),
            head,
            16,
        ),
        "timm_siglip": lambda: Source(
            vit(class_token=False, global_pool="map", num_classes=0), head, 16
        ),
        "timm_dinov3": lambda: Source(eva(small), token, 16),
        "timm_dinov3_swiglu": lambda: Source(
            eva(small, swiglu_mlp=True, swiglu_align_to=8), token, 16
        ),
        "torchvision_vit": lambda: Source(
            torchvision.models.VisionTransformer(16, 4, 2, 2, 128, 256), without("heads"), 16
        ),
        "transformers_vit": lambda: family("ViTModel", hidden, **wide),
        "transformers_mae": lambda: family("ViTMAEModel", mae, **wide),
        "transformers_dinov2": lambda: family("Dinov2Model", hidden, **hf, mlp_ratio=2),
        "transformers_dinov2_smaller": lambda: described(
            family("Dinov2Model", hidden, 12, **hf, mlp_ratio=2), 12
        ),
        "transformers_dinov2_registers_swiglu_smaller": lambda: described(
            family("Dinov2WithRegistersModel", hidden, 12, **hf, mlp_ratio=2, use_swiglu_ffn=True),
            12,
        ),
        "transformers_dinov3": lambda: family(
            "DINOv3ViTModel", hidden, **wide, num_register_tokens=2
        ),
        "transformers_dinov3_swiglu": lambda: family(
            "DINOv3ViTModel", hidden, **wide, use_gated_mlp=True, hidden_act="silu"
        ),
        "transformers_clip": lambda: Source(
            t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**wide, projection_dim=32)).eval(),
            lambda model, x: model(x).image_embeds,
            16,
        ),
        "transformers_siglip": lambda: family("SiglipVisionModel", **wide),
        "openai_clip": lambda: clip(True, openai),
        "open_clip": lambda: clip(False, {}),
        "open_clip_resnet50": lambda: clip(True, {}, convolutions),
        "timm_deit_distilled": lambda: Source(
            VisionTransformerDistilled(**small, num_classes=3), head, 16
        ),
        "transformers_deit": lambda: family("DeiTModel", both_tokens, **wide),
        "timm_resnet26": lambda: Source(resnet(Bottleneck, (2, 2, 2, 2)), head, 32),
        "timm_resnet26d": lambda: Source(
            resnet(Bottleneck, (2, 2, 2, 2), stem_type="deep", stem_width=32, avg_down=True),
            head,
            33,
        ),
        "timm_resnet18d": lambda: Source(
            resnet(BasicBlock, (2, 2, 2, 2), stem_type="deep", stem_width=32, avg_down=True),
            head,
            32,
        ),
        "timm_resnext26": lambda: Source(
            resnet(Bottleneck, (2, 2, 2, 2), cardinality=32, base_width=4), head, 32
        ),
        "timm_wide_resnet26": lambda: Source(
            resnet(Bottleneck, (2, 2, 2, 2), base_width=128), head, 32
        ),
        "transformers_resnet": lambda: family(
            "ResNetModel",
            size=32,
            embedding_size=8,
            hidden_sizes=[32, 64, 128, 256],
            depths=[2, 2, 2, 2],
        ),
        "timm_convnext": lambda: Source(
            ConvNeXt(depths=(1, 2, 1, 1), dims=(8, 16, 24, 32), num_classes=3), head, 32
        ),
        "timm_convnextv2": lambda: Source(
            ConvNeXt(
                depths=(1, 2, 1, 1),
                dims=(8, 16, 24, 32),
                use_grn=True,
                ls_init_value=None,
                conv_mlp=True,
            ),
            head,
            32,
        ),
        "transformers_convnextv2": lambda: family(
            "ConvNextV2Model", size=32, hidden_sizes=[8, 16, 24, 32], depths=[1, 2, 1, 1]
        ),
        "torchvision_convnext": lambda: Source(
            torchvision.models.ConvNeXt(stages), tv_convnext, 32
        ),
        "transformers_convnext": lambda: family(
            "ConvNextModel", size=32, hidden_sizes=[8, 16, 24, 32], depths=[1, 2, 1, 1]
        ),
    }


def full() -> dict[str, Callable[[], Source]]:
    t = transformers

    def timm_source(name: str, features: Features = head, **options: Any) -> Source:
        model = timm.create_model(name, **options)
        size = model.pretrained_cfg["input_size"][-1]
        return Source(model, features, size if "vit" in name or "deit" in name else 224)

    def tv(name: str, head: str) -> Source:
        return Source(getattr(torchvision.models, name)(), without(head), 224)

    def hf(kind: str, features: Features = pooled, **config: Any) -> Source:
        base = getattr(t, kind)(getattr(t, kind.removesuffix("Model") + "Config")(**config))
        return Source(base, features, 224)

    def clip() -> Source:
        model = t.CLIPVisionModelWithProjection(t.CLIPVisionConfig())
        return Source(model, lambda model, x: model(x).image_embeds, 224)

    def oc(name: str, **extra: list[int]) -> Source:
        model = open_clip.create_model(name)
        return Source(model, lambda m, x: m.encode_image(x), 224, extra=extra)

    return {
        "torchvision resnet50": lambda: tv("resnet50", "fc"),
        "torchvision wide_resnet50_2": lambda: tv("wide_resnet50_2", "fc"),
        "torchvision resnext50_32x4d": lambda: tv("resnext50_32x4d", "fc"),
        "torchvision vit_b_16": lambda: tv("vit_b_16", "heads"),
        "torchvision convnext_tiny": lambda: Source(
            torchvision.models.convnext_tiny(), tv_convnext, 224
        ),
        "timm resnet26": lambda: timm_source("resnet26"),
        "timm resnet50d": lambda: timm_source("resnet50d"),
        "timm convnext_tiny": lambda: timm_source("convnext_tiny"),
        "timm deit_small (and DINO, MoCo-v3)": lambda: timm_source("deit_small_patch16_224"),
        "timm vit_large, MAE": lambda: timm_source("vit_large_patch16_224.mae"),
        "timm vit_small_dinov2": lambda: timm_source("vit_small_patch14_dinov2"),
        "timm vit_small_reg4_dinov2": lambda: timm_source("vit_small_patch14_reg4_dinov2"),
        "timm vit_giant_dinov2 (2 blocks)": lambda: timm_source(
            "vit_giant_patch14_dinov2", depth=2
        )._replace(options={"layers": 2}),
        "timm deit_small_distilled": lambda: timm_source("deit_small_distilled_patch16_224"),
        "timm convnextv2_tiny": lambda: timm_source("convnextv2_tiny"),
        "transformers ConvNeXt V2-T": lambda: hf("ConvNextV2Model"),
        "open_clip RN50, as OpenAI's": lambda: oc("RN50"),
        "open_clip RN50x4": lambda: oc("RN50x4")._replace(size=288),
        "timm vit_small_dinov3": lambda: timm_source("vit_small_patch16_dinov3", token),
        "timm vit_base_clip": lambda: timm_source("vit_base_patch16_clip_224"),
        "timm vit_base_siglip": lambda: timm_source("vit_base_patch16_siglip_224"),
        "open_clip ViT-B-32": lambda: oc("ViT-B-32"),
        "open_clip ViT-B-32-quickgelu, as OpenAI's": lambda: oc(
            "ViT-B-32-quickgelu", input_resolution=[]
        ),
        "transformers ViT-B": lambda: hf("ViTModel", hidden),
        "transformers DINOv2-S": lambda: hf(
            "Dinov2Model", hidden, hidden_size=384, num_attention_heads=6, image_size=224
        ),
        "transformers CLIP ViT-B/32": clip,
        "transformers SigLIP-B": lambda: hf("SiglipVisionModel"),
        "transformers ResNet-50": lambda: hf("ResNetModel"),
        "transformers DINOv3-S": lambda: hf(
            "DINOv3ViTModel",
            hidden,
            hidden_size=384,
            num_attention_heads=6,
            intermediate_size=1536,
            num_register_tokens=4,
        ),
    }


def write(source: Source, folder: Path) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Draw random weights of an encoder and write them to a folder, in the files of its library.

    Returns:
        The shapes of the drawn arrays by name, and the JSON files of the folder.
    """
    model, path = source.model, folder / "model.safetensors"
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(folder)
        shapes = {name: list(array.shape) for name, array in load_file(path).items()}
        save_file(draw_arrays(shapes), path, {"format": "pt"})
        state = type(model).from_pretrained(folder).state_dict()
    else:
        shapes = {name: list(array.shape) for name, array in model.state_dict().items()}
        shapes |= source.extra
        drawn = draw_arrays(shapes)
        save_file(drawn, path)
        state = {k: torch.from_numpy(v) for k, v in drawn.items() if k not in source.extra}
    model.load_state_dict(state)
    for name, content in source.files.items():
        (folder / name).write_text(json.dumps(content))
    files = {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}
    return shapes, files


def compare(make: Callable[[], Source]) -> dict[str, Any]:
    """Compare our features with the library's: difference, loading time, and the case for tests."""
    torch.manual_seed(0)
    source = make()
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        shapes, files = write(source, folder)
        x = np.random.default_rng(1).standard_normal((2, 3, source.size, source.size), np.float32)
        model = source.resize(source.model.eval())
        expected = source.features(model, torch.from_numpy(x)).numpy()
        start = time.perf_counter()
        try:
            apply, variables, _ = jaxssl.load_encoder(folder, **source.options)
        except jaxssl.errors.UserError as error:
            return {"difference": np.nan, "error": str(error), "features": expected}
        seconds = time.perf_counter() - start
        actual = np.asarray(apply(variables, x.transpose(0, 2, 3, 1)))
    difference = np.abs(actual - expected).max() / np.abs(expected).max()
    case = {"shapes": shapes, "files": files, "size": source.size, "options": source.options}
    return {"difference": difference, "seconds": seconds, "features": expected, "case": case}


def preprocess() -> dict[str, dict[str, Any]]:
    """Return, by case, preprocessing settings, a picture's shape and the library's result for it.

    The results are the pixels at every 16th row and column, in [0, 1].
    """

    def by_timm(size: int, crop: float, interpolation: str) -> Any:
        settings = {"crop_pct": crop} if crop else {"crop_pct": 1.0, "crop_mode": "squash"}
        return create_transform(
            (3, size, size), mean=(0,) * 3, std=(1,) * 3, interpolation=interpolation, **settings
        )

    def by_torchvision(size: int, crop: float, interpolation: str) -> Any:
        mode = torchvision.transforms.InterpolationMode(interpolation)
        return torchvision.transforms._presets.ImageClassification(
            crop_size=size,
            resize_size=round(size / crop),
            mean=(0,) * 3,
            std=(1,) * 3,
            interpolation=mode,
        )

    def by_transformers(size: int, crop: float, interpolation: str) -> Any:
        processor = transformers.CLIPImageProcessor(
            size={"shortest_edge": round(size / crop)},
            crop_size=size,
            do_normalize=False,
            resample={"bilinear": 2, "bicubic": 3}[interpolation],
        )
        return lambda image: processor(image, return_tensors="np")["pixel_values"][0]

    results = {}
    for library, size, crop, interpolation in (
        (by_timm, 224, 0.875, "bicubic"),
        (by_timm, 224, 0.9, "bilinear"),
        (by_timm, 384, 1.0, "bicubic"),
        (by_timm, 224, 0.0, "bicubic"),
        (by_torchvision, 224, 224 / 232, "bilinear"),
        (by_transformers, 224, 0.875, "bicubic"),
    ):
        for shape in ((375, 500), (500, 333), (427, 640), (180, 240)):
            if (library, shape) == (by_transformers, (427, 640)):
                continue  # transformers rounds half pixels down, torchvision to even numbers.
            picture = draw_picture(*shape)
            theirs = library(size, crop, interpolation)(Image.fromarray(picture))
            theirs = np.asarray(theirs).transpose(1, 2, 0)
            settings = {"size": size, "crop": crop, "interpolation": interpolation}
            inputs = Inputs(channels=3, mean=(0.0,), std=(1.0,), **settings)
            ours = np.asarray(inputs.prepare(picture[None]))[0]
            name = f"{library.__name__[3:]} {size} {crop:.3g} {interpolation} {shape}"
            case = {"settings": settings, "shape": shape}
            difference = np.abs(ours - theirs).max() * 255
            results[name] = {"case": case, "difference": difference, "pixels": theirs[::16, ::16]}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    results = {}
    for name, make in (tiny() if args.record else full()).items():
        if args.only in name:
            results[name] = compare(make)
            row = results[name]
            print(f"{name:45} {row['difference']:.1e} {row.get('seconds', 0):6.2f} s", flush=True)
            if "error" in row:
                print(f"    {row['error']}", flush=True)
    pictures = {} if args.only else preprocess()
    for name, row in pictures.items():
        print(f"{name:45} {row['difference']:.2f} of 255")
    if args.record and not args.only:
        arrays = {f"{name}/features": row["features"] for name, row in results.items()}
        arrays |= {f"{name}/pixels": row["pixels"] for name, row in pictures.items()}
        cases, images = (
            json.dumps({name: row["case"] for name, row in rows.items()})
            for rows in (results, pictures)
        )
        path = ROOT / "tests/golden/encoders.npz"
        np.savez_compressed(path, cases=cases, pictures=images, **arrays)


if __name__ == "__main__":
    main()
