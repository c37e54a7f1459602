"""Compare encoders of torchvision, timm, transformers and open_clip with our reading of them.

    python benchmarks/public_encoders.py --record    # tests/golden/encoders.npz, tiny networks
    python benchmarks/public_encoders.py             # 29 typical encoders at full size

Needs torch, torchvision, timm, transformers and open_clip_torch. Weights are random; see
`draw_arrays` in tests/weights_cases.py. The figures are the largest difference of the features,
relative to the largest feature, and the time of loading.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
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
        files: JSON files next to the weights, by name.
        extra: shapes of further arrays in the file.
        resize: maps the module to one for images of `size` pixels.
    """

    model: Any
    features: Features
    size: int
    options: dict[str, Any] = {}
    files: dict[str, Any] = {}
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


def case(
    make: Callable, features: Features = head, size: int = 16, about: Mapping = {}, **settings: Any
) -> Callable[[], Source]:
    """Return a function that makes an encoder; ``about`` has the other fields of `Source`."""
    return lambda: Source(make(**settings), features, size, **about)


def family(
    kind: str, features: Features = pooled, size: int = 224, about: Mapping = {}, **config: Any
) -> Callable[[], Source]:
    """Return a function that makes a model of transformers from the settings of its config."""
    config_name = re.sub("Model(WithProjection)?$", "Config", kind)

    def make() -> Any:
        return getattr(transformers, kind)(getattr(transformers, config_name)(**config))

    return case(make, features, size, about)


def another_size(size: int, resize: Callable = resized, **about: Any) -> dict[str, Any]:
    """Return fields of a `Source` that is read for images of another size."""
    return {"options": {"size": size}, "resize": partial(resize, size=size), **about}


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


def image_embeds(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).image_embeds


def encode_image(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.encode_image(x)


def mae(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.config.mask_ratio = 0.0
    patches = (x.shape[-1] // model.config.patch_size) ** 2
    return hidden(model, x, noise=torch.arange(patches)[None].repeat(len(x), 1).float())


def described(size: int) -> dict[str, Any]:
    """Return the JSON file in which transformers stores the preprocessing, as a `Source` field."""
    side = {"height": size, "width": size}
    config = {"size": {"shortest_edge": 16}, "crop_size": side, "do_center_crop": True}
    config |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "resample": 3}
    return {"files": {"preprocessor_config.json": config}}


def tiny() -> dict[str, Callable[[], Source]]:
    small: dict[str, Any] = dict(img_size=16, patch_size=4, embed_dim=128, depth=2, num_heads=2)
    hf: dict[str, Any] = dict(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4
    )
    wide, dinov2 = dict(hf, intermediate_size=192), dict(hf, mlp_ratio=2)
    text = dict(context_length=4, vocab_size=9, width=64, heads=1, layers=1)
    tower = dict(image_size=16, layers=2, width=128, head_width=64, patch_size=4)
    convolutions = dict(image_size=64, layers=(3, 4, 6, 3), width=8, head_width=64)
    vit = partial(case, partial(VisionTransformer, **small))
    dinov3 = partial(case, partial(eva, small), token)
    swiglu = dict(mlp_layer=partial(GluMlp, gate_last=False), act_layer=torch.nn.SiLU, mlp_ratio=3)
    deep = dict(stem_type="deep", stem_width=32, avg_down=True)
    convnext = dict(depths=(1, 2, 1, 1), dims=(8, 16, 24, 32))
    hf_convnext = dict(hidden_sizes=[8, 16, 24, 32], depths=[1, 2, 1, 1])
    hf_resnet = dict(embedding_size=8, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2])
    blocks = ((8, 16, 1), (16, 24, 2), (24, 32, 1), (32, None, 1))
    stages = [CNBlockConfig(*block) for block in blocks]
    openai = {name: [] for name in ("input_resolution", "context_length", "vocab_size")}

    def resnet(block: type, size: int = 32, **settings: Any) -> Callable[[], Source]:
        return case(partial(ResNet, block, (2, 2, 2, 2), num_classes=3), head, size, **settings)

    def clip(quick: bool, vision: dict[str, Any] = tower, **about: Any) -> Callable[[], Source]:
        model = partial(open_clip.model.CLIP, embed_dim=32, text_cfg=text, vision_cfg=vision)
        return case(model, encode_image, vision["image_size"], about, quick_gelu=quick)

    return {
        "timm_vit": vit(num_classes=5),
        "timm_vit_mean": vit(
            about={"options": {"pool": "mean"}}, num_classes=0, global_pool="avg", fc_norm=False
        ),
        "timm_vit_larger": vit(head, 24, another_size(24), num_classes=0),
        "timm_vit_smaller": vit(head, 12, another_size(12), num_classes=0),
        "timm_dinov2": vit(num_classes=0, init_values=1e-5),
        "timm_dinov2_registers_swiglu": vit(
            num_classes=0, init_values=1, reg_tokens=4, no_embed_class=True, **swiglu
        ),
        "dinov2_larger": vit(
            *(head, 24, another_size(24, dino_positions, extra={"mask_token": [1, 128]})),
            num_classes=0,
            init_values=1e-5,
        ),
        "timm_clip": vit(
            pre_norm=True, norm_layer=partial(torch.nn.LayerNorm, eps=1e-5), num_classes=3
        ),
        "timm_siglip": vit(class_token=False, global_pool="map", num_classes=0),
        "timm_dinov3": dinov3(),
        "timm_dinov3_swiglu": dinov3(swiglu_mlp=True, swiglu_align_to=8),
        "torchvision_vit": case(
            partial(torchvision.models.VisionTransformer, 16, 4, 2, 2, 128, 256), without("heads")
        ),
        "transformers_vit": family("ViTModel", hidden, 16, **wide),
        "transformers_mae": family("ViTMAEModel", mae, 16, **wide),
        "transformers_dinov2": family("Dinov2Model", hidden, 16, **dinov2),
        "transformers_dinov2_smaller": family("Dinov2Model", hidden, 12, described(12), **dinov2),
        "transformers_dinov2_registers_swiglu_smaller": family(
            *("Dinov2WithRegistersModel", hidden, 12, described(12)), **dinov2, use_swiglu_ffn=True
        ),
        "transformers_dinov3": family("DINOv3ViTModel", hidden, 16, **wide, num_register_tokens=2),
        "transformers_dinov3_swiglu": family(
            "DINOv3ViTModel", hidden, 16, **wide, use_gated_mlp=True, hidden_act="silu"
        ),
        "transformers_clip": family(
            "CLIPVisionModelWithProjection", image_embeds, 16, **wide, projection_dim=32
        ),
        "transformers_siglip": family("SiglipVisionModel", pooled, 16, **wide),
        "openai_clip": clip(True, extra=openai),
        "open_clip": clip(False),
        "open_clip_resnet50": clip(True, convolutions),
        "timm_deit_distilled": case(partial(VisionTransformerDistilled, **small), num_classes=3),
        "transformers_deit": family("DeiTModel", both_tokens, 16, **wide),
        "timm_resnet26": resnet(Bottleneck),
        "timm_resnet26d": resnet(Bottleneck, 33, **deep),
        "timm_resnet18d": resnet(BasicBlock, **deep),
        "timm_resnext26": resnet(Bottleneck, cardinality=32, base_width=4),
        "timm_wide_resnet26": resnet(Bottleneck, base_width=128),
        "transformers_resnet": family("ResNetModel", pooled, 32, **hf_resnet),
        "timm_convnext": case(ConvNeXt, head, 32, **convnext, num_classes=3),
        "timm_convnextv2": case(
            ConvNeXt, head, 32, **convnext, use_grn=True, ls_init_value=None, conv_mlp=True
        ),
        "transformers_convnextv2": family("ConvNextV2Model", pooled, 32, **hf_convnext),
        "torchvision_convnext": case(partial(torchvision.models.ConvNeXt, stages), tv_convnext, 32),
        "transformers_convnext": family("ConvNextModel", pooled, 32, **hf_convnext),
    }


def full() -> dict[str, Callable[[], Source]]:
    def timm_source(
        name: str, features: Features = head, about: Mapping = {}, **options: Any
    ) -> Callable[[], Source]:
        def make() -> Source:
            model = timm.create_model(name, **options)
            size = model.pretrained_cfg["input_size"][-1]
            is_vit = "vit" in name or "deit" in name
            return Source(model, features, size if is_vit else 224, **about)

        return make

    def tv(name: str, features: Features) -> Callable[[], Source]:
        return case(getattr(torchvision.models, name), features, 224)

    def oc(name: str, size: int = 224, **about: Any) -> Callable[[], Source]:
        return case(partial(open_clip.create_model, name), encode_image, size, about)

    small = dict(hidden_size=384, num_attention_heads=6)
    return {
        "torchvision resnet50": tv("resnet50", without("fc")),
        "torchvision wide_resnet50_2": tv("wide_resnet50_2", without("fc")),
        "torchvision resnext50_32x4d": tv("resnext50_32x4d", without("fc")),
        "torchvision vit_b_16": tv("vit_b_16", without("heads")),
        "torchvision convnext_tiny": tv("convnext_tiny", tv_convnext),
        "timm resnet26": timm_source("resnet26"),
        "timm resnet50d": timm_source("resnet50d"),
        "timm convnext_tiny": timm_source("convnext_tiny"),
        "timm deit_small (and DINO, MoCo-v3)": timm_source("deit_small_patch16_224"),
        "timm vit_large, MAE": timm_source("vit_large_patch16_224.mae"),
        "timm vit_small_dinov2": timm_source("vit_small_patch14_dinov2"),
        "timm vit_small_reg4_dinov2": timm_source("vit_small_patch14_reg4_dinov2"),
        "timm vit_giant_dinov2 (2 blocks)": timm_source(
            "vit_giant_patch14_dinov2", about={"options": {"layers": 2}}, depth=2
        ),
        "timm deit_small_distilled": timm_source("deit_small_distilled_patch16_224"),
        "timm convnextv2_tiny": timm_source("convnextv2_tiny"),
        "transformers ConvNeXt V2-T": family("ConvNextV2Model"),
        "open_clip RN50, as OpenAI's": oc("RN50"),
        "open_clip RN50x4": oc("RN50x4", 288),
        "timm vit_small_dinov3": timm_source("vit_small_patch16_dinov3", token),
        "timm vit_base_clip": timm_source("vit_base_patch16_clip_224"),
        "timm vit_base_siglip": timm_source("vit_base_patch16_siglip_224"),
        "open_clip ViT-B-32": oc("ViT-B-32"),
        "open_clip ViT-B-32-quickgelu, as OpenAI's": oc(
            "ViT-B-32-quickgelu", extra={"input_resolution": []}
        ),
        "transformers ViT-B": family("ViTModel", hidden),
        "transformers DINOv2-S": family("Dinov2Model", hidden, **small, image_size=224),
        "transformers CLIP ViT-B/32": family("CLIPVisionModelWithProjection", image_embeds),
        "transformers SigLIP-B": family("SiglipVisionModel"),
        "transformers ResNet-50": family("ResNetModel"),
        "transformers DINOv3-S": family(
            "DINOv3ViTModel", hidden, **small, intermediate_size=1536, num_register_tokens=4
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
