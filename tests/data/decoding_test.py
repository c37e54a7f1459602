"""Decoding against NumPy and Pillow by hand, and the crops of the host."""

import io
import struct
import zlib

import jax
import numpy as np
import pytest
from file_cases import encoded
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from jaxssl.augment import image as device
from jaxssl.data.decoders import decoding
from jaxssl.data.decoders.decoding import Crop, open_picture

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(0)
H, W = 5, 7
COLOURS = RNG.integers(0, 256, (H, W, 3), np.uint8)
GREY = RNG.integers(0, 256, (H, W), np.uint8)
DEEP = RNG.integers(0, 2**16, (H, W), np.uint16)
DEEP[0, :3] = 0, 2**16 - 1, 128  # rounds down: 128 / 257 < 1/2
ORIENTATIONS = {  # EXIF orientation (tag 274) -> function that turns stored pixels upright
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: lambda x: np.rot90(x),
}
CROPS = (Crop(8, (0.08, 1.0), (3 / 4, 4 / 3)), Crop(4, (0.05, 0.3), (0.5, 2.0)))


def opened(data, channels=3, **options):
    picture = open_picture(data, channels, **options)
    assert picture.mode == {1: "L", 3: "RGB"}[channels]
    return np.asarray(picture)


def as_rgb(grey):
    return np.repeat(np.asarray(grey)[:, :, None], 3, 2)


def smooth(width, height):
    """A picture without sharp edges."""
    coarse = np.random.default_rng(1).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


# Decoding whole images.


@pytest.mark.parametrize(
    ("format", "options"),
    [("png", {}), ("bmp", {}), ("ppm", {}), ("tiff", {}), ("webp", {"lossless": True})],
)
def test_lossless_files_decode_exactly(format, options):
    np.testing.assert_array_equal(opened(encoded(COLOURS, format, **options)), COLOURS)
    grey = encoded(GREY, format, **options)
    np.testing.assert_array_equal(opened(grey), as_rgb(GREY))
    np.testing.assert_array_equal(opened(grey, 1), GREY)


def test_colour_images_become_grey_by_luma():
    luma = COLOURS @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(opened(encoded(COLOURS), 1), luma, atol=0.51)


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_lossy_files_are_decoded_as_pillow_decodes_them(format):
    picture = smooth(40, 30)
    data = encoded(picture, format, quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(opened(data), expected)
    assert np.abs(expected - np.asarray(picture, np.float32)).mean() < 4


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("png", {}),
        ("png", {"transparency": 3}),
        ("png", {"transparency": bytes(range(9))}),
        ("gif", {}),
        ("gif", {"transparency": 3}),
    ],
)
def test_palette_images_become_rgb(format, options):
    indices = RNG.integers(0, 9, (H, W), np.uint8)
    indices[0] = 3
    palette = RNG.integers(0, 256, (9, 3), np.uint8)
    picture = Image.fromarray(indices, "L")
    picture.putpalette(palette.tobytes())
    assert picture.mode == "P"
    np.testing.assert_array_equal(opened(encoded(picture, format, **options)), palette[indices])


def test_alpha_channel_is_dropped():
    alpha = RNG.integers(0, 256, (H, W, 1), np.uint8)
    alpha[0] = 0
    np.testing.assert_array_equal(opened(encoded(np.concatenate([COLOURS, alpha], 2))), COLOURS)
    both = np.concatenate([GREY[:, :, None], alpha], 2)
    np.testing.assert_array_equal(opened(encoded(both)), as_rgb(GREY))
    np.testing.assert_array_equal(opened(encoded(both), 1), GREY)


def test_cmyk_images_become_rgb():
    values = RNG.integers(0, 256, (H, W, 4), np.uint8)
    light = 1 - values / 255
    expected = 255 * light[:, :, :3] * light[:, :, 3:]
    actual = opened(encoded(Image.fromarray(values, "CMYK"), "tiff"))
    np.testing.assert_allclose(actual, expected, atol=1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_lab_images_are_converted_by_way_of_rgb(channels):
    lab = Image.fromarray(RNG.integers(0, 256, (H, W, 3), np.uint8), "LAB")
    expected = open_picture(encoded(lab.convert("RGB"), "tiff"), channels)
    actual = open_picture(encoded(lab, "tiff"), channels)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


@pytest.mark.parametrize("format", ["png", "tiff", "bmp"])
def test_one_bit_images_become_black_and_white(format):
    data = encoded(GREY > 127, format)
    np.testing.assert_array_equal(opened(data, 1), np.where(GREY > 127, 255, 0))
    np.testing.assert_array_equal(opened(data)[:, :, 2], np.where(GREY > 127, 255, 0))


@pytest.mark.parametrize("format", ["png", "tiff", "ppm"])
def test_sixteen_bit_images_are_rounded_to_eight_bits(format):
    expected = np.floor(DEEP / 257 + 0.5)
    data = encoded(DEEP, format)
    np.testing.assert_array_equal(opened(data, 1), expected)
    np.testing.assert_array_equal(opened(data), as_rgb(expected))


def test_big_endian_and_int32_images_are_rounded_to_eight_bits():
    swapped = Image.frombytes("I;16B", (W, H), DEEP.astype(">u2").tobytes())
    for picture in (swapped, DEEP.astype(np.int32)):
        data = encoded(picture, "tiff")
        np.testing.assert_array_equal(opened(data, 1), np.floor(DEEP / 257 + 0.5))


def test_orientation_in_xmp_is_applied():
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    xmp = '<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="3"/>'
    picture, file = Image.fromarray(pixels), io.BytesIO()
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp)
    picture.save(file, "png", pnginfo=text)
    upright = decoding.open_picture(file.getvalue(), 1, upright=True)
    np.testing.assert_array_equal(np.asarray(upright), pixels[::-1, ::-1])


def test_16_bit_values_of_either_byte_order_are_rounded_to_8_bits():
    values = np.array([[[0], [257], [65535]]])
    for dtype in ("<u2", ">u2"):
        rounded = decoding.to_8_bits(values.astype(dtype))
        assert rounded.dtype == np.uint8 and rounded.ravel().tolist() == [0, 1, 255]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "tiff"])
def test_exif_orientation_is_applied(format, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    options = {"webp": {"lossless": True}}.get(format, {})
    data = encoded(smooth(24, 16), format, exif=exif, **options)
    stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    if format == "tiff":  # Pillow itself applies the orientation of TIFF files.
        stored = np.asarray(smooth(24, 16))
    upright = opened(data, upright=True)
    np.testing.assert_array_equal(upright, ORIENTATIONS[orientation](stored))
    if format != "tiff":
        np.testing.assert_array_equal(opened(data), stored)


def test_exif_data_after_the_pixels_of_a_png_are_read():
    exif = Image.Exif()
    exif[274] = 6
    content = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = b"eXIf" + content
    chunk = struct.pack(">I", len(content)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    whole, end = encoded(COLOURS), 12  # the last 12 bytes are the chunk IEND
    data = whole[:-end] + chunk + whole[-end:]
    np.testing.assert_array_equal(opened(data, upright=True), np.rot90(COLOURS, -1))


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0nonsense", b"II*\0"])
def test_empty_or_invalid_exif_data_are_ignored(exif):
    data = encoded(COLOURS, "png", exif=exif)
    np.testing.assert_array_equal(opened(data, upright=True), COLOURS)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (DEEP.astype(np.float32), "floating-point pixels"),
        (DEEP.astype(np.int32) - 1, "values outside of 0 to 65535"),
        (DEEP.astype(np.int32) + 1, "values outside of 0 to 65535"),
    ],
)
def test_pixel_values_of_unknown_range_are_rejected(values, reason):
    with pytest.raises(OSError, match=reason):
        open_picture(encoded(values, "tiff"), 3)


@pytest.mark.parametrize("format", ["png", "jpeg", "webp", "bmp"])
def test_truncated_image_is_rejected(format):
    whole = encoded(RNG.integers(0, 256, (32, 32, 3), np.uint8), format)
    for data in (b"", b"a text", whole[:20], whole[: len(whole) // 2]):
        with pytest.raises(OSError):
            open_picture(data, 3)


def test_png_with_a_changed_byte_is_rejected():
    whole = encoded(np.concatenate([COLOURS[:, :, :1], COLOURS[:, :, 1:2]], 2))  # grey and alpha
    for place in range(8, len(whole)):
        data = bytearray(whole)
        data[place] ^= 1
        with pytest.raises((OSError, SyntaxError, ValueError)):  # The error depends on the byte.
            open_picture(bytes(data), 3)


def test_image_formats_outside_the_supported_ones_are_not_opened(monkeypatch):
    """For EPS, Pillow would run Ghostscript, whatever the file is called."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was run"))
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("run"))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 5\n%%EndComments\n"
    with pytest.raises(OSError, match="not an image in a supported format"):
        open_picture(eps + b"showpage\n%%EOF\n", 3)


@pytest.mark.parametrize(
    ("side", "reason"), [(9000, "9000 x 9000 pixels, more than"), (20_000, "more pixels than")]
)
def test_small_file_that_decodes_to_a_huge_image_is_rejected(side, reason):
    whole = bytearray(encoded(GREY, "bmp"))
    whole[18:26] = side.to_bytes(4, "little") * 2
    with pytest.raises(OSError, match=f"{reason} the limit of {decoding.MAX_PIXELS}"):
        open_picture(bytes(whole), 3)


@pytest.mark.parametrize("shape", [(H, W, 3), (H, W, 1)])
def test_encoding_and_decoding_an_image_returns_the_same_pixels(shape):
    values = RNG.integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(decoding.pixels(decoding.from_pixels(values)), values)


# Cropping on the host.


@pytest.mark.parametrize(("width", "height"), [(128, 192), (192, 128), (128, 128), (320, 128)])
def test_centre_crop_matches_the_imagenet_test_crop(width, height):
    """The short side becomes 256 / 224 of the size, of which the middle is cut out."""
    size, short = 56, 64
    for picture in (smooth(width, height), smooth(width, height).convert("L")):
        whole = (width * short // 128, height * short // 128)
        left, top = ((side - size) // 2 for side in whole)
        cut = picture.resize(whole, Image.Resampling.BILINEAR)
        expected = decoding.pixels(cut.crop((left, top, left + size, top + size)))
        actual = decoding.centre(picture, size)
        assert actual.shape == expected.shape and actual.dtype == np.uint8
        np.testing.assert_allclose(actual, expected.astype(np.int32), atol=1)


def test_centre_crop_of_a_small_image_is_enlarged():
    assert decoding.centre(smooth(3, 2), 64).shape == (64, 64, 3)
    assert decoding.centre(smooth(1, 9).convert("L"), 8).shape == (8, 8, 1)


def boxes_of(monkeypatch, shape, crops, seed, draws=1):
    """The boxes that are cut out, [draws, crops, 4]."""
    actual = []
    monkeypatch.setattr(decoding, "_resize", lambda picture, box, size: actual.append(box))
    rng, picture = np.random.default_rng(seed), Image.new("L", (shape[1], shape[0]))
    for _ in range(draws):
        decoding.random_crops(picture, crops, rng)
    return np.array(actual).reshape(draws, len(crops), 4)


@pytest.mark.parametrize("shape", [(200, 300), (31, 17), (8, 500)])
def test_host_crop_boxes_equal_those_of_the_device_code(monkeypatch, shape):
    draws = 500
    actual = boxes_of(monkeypatch, shape, CROPS, 5, draws)
    numbers = (draws, len(CROPS), device.CROP_NUMBERS)
    u = np.random.default_rng(5).random(numbers).astype(np.float32)
    for i, crop in enumerate(CROPS):
        box = lambda u, crop=crop: device.random_crop_box(u, shape, crop.scale, crop.ratio)  # noqa: E731
        expected = jax.jit(jax.vmap(box))(u[:, i])
        np.testing.assert_allclose(actual[:, i], expected, atol=2e-6 * max(shape), rtol=1e-5)


@pytest.mark.parametrize("shape", [(8, 500), (500, 8), (1, 1)])
def test_random_crop_boxes_lie_inside_the_image(monkeypatch, shape):
    left, top, right, bottom = boxes_of(monkeypatch, shape, CROPS, 0, 1000).reshape(-1, 4).T
    assert (left >= 0).all() and (top >= 0).all()
    assert (left < right).all() and (top < bottom).all()
    assert (right <= shape[1] * (1 + 1e-12)).all() and (bottom <= shape[0] * (1 + 1e-12)).all()


def test_random_host_crops_contain_the_pixels_of_their_boxes(monkeypatch):
    picture = smooth(60, 40)
    views = decoding.random_crops(picture, CROPS, np.random.default_rng(3))
    boxes = boxes_of(monkeypatch, (40, 60), CROPS, 3)[0]
    values = np.asarray(picture, np.float32) / 255
    resize = jax.jit(device.crop_resize, static_argnums=2)
    for view, box, crop in zip(views, boxes, CROPS, strict=True):
        assert view.shape == (crop.size, crop.size, 3) and view.dtype == np.uint8
        expected = 255 * resize(values, box.astype(np.float32), crop.size)
        np.testing.assert_allclose(view, expected, atol=1.01)


@pytest.mark.parametrize("ratio", [(1.0, 1.0), (3 / 4, 4 / 3)])
@pytest.mark.parametrize("size", [(16, 16), (60, 40)])
def test_crop_with_scale_one_is_the_whole_image(size, ratio):
    picture, crop = smooth(*size), Crop(16, (1.0, 1.0), ratio)
    [actual] = decoding.random_crops(picture, [crop], np.random.default_rng(0))
    np.testing.assert_array_equal(actual, picture.resize((16, 16), Image.Resampling.BILINEAR))
