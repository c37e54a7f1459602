"""Folders of frames as data sets: layouts, pixels, what is refused, windows."""

import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import video_cases
from data_cases import data_config
from file_cases import pack, picture, pixels_of, refused, unpack
from PIL import Image
from video_cases import FOUR, SHAPE, SIZE, classes_of, examples, of_stills, several, stills

from jaxssl.data import source
from jaxssl.data.decoders.decoding import Crops
from jaxssl.data.formats import video
from jaxssl.data.records import Example
from jaxssl.kinds import video as clips
from jaxssl.kinds.video import ReadClips

pytestmark = pytest.mark.fast

GENERIC = "is not an image in a supported format"


@pytest.fixture(scope="module")
def load(prepared):
    return video_cases.loader(prepared)


# Layouts of folders of frames, given by file names.


@pytest.mark.parametrize("around", ["", "pack/"])
@pytest.mark.parametrize("file", ["{}.mp4", "{}.AVI", "{}/0.jpg"])
def test_class_of_a_clip_is_its_parent_folder(around, file):
    names = [around + file.format(f"{c}/{i}") for c in ("ant", "bee/big") for i in range(10)]
    actual = video.arrange([*names, f"{around}README.md"], "PATH")
    of = {name.removesuffix("/0.jpg"): name for name in names}
    assert actual.classes == ("ant", "bee/big") and actual.other == (f"{around}README.md",)
    assert actual.files == {clip: (name,) for clip, name in of.items()}
    assert {s: len(of) for s, of in actual.splits.items()} == {"train": 16, "test": 4}
    whole = actual.splits["train"] | actual.splits["test"]
    assert whole == {c: c.removeprefix(around).rpartition("/")[0] for c in of}
    assert len(video.arrange(names, "PATH", test_fraction=0.5, split_seed=1).splits["test"]) == 10


@pytest.mark.parametrize("file", ["{}.webm", "{}/0.jpg"])
def test_video_folders_of_splits_and_classes_are_read(file):
    of = {"train": ["train/a/1", "train/b/1"], "val": ["val/a/2"], "unlabelled": ["unlabelled/3"]}
    names = {name: file.format(name) for names in of.values() for name in names}
    actual = video.arrange(list(names.values()), "PATH")
    ends = ".webm" if ".webm" in file else ""
    assert actual.splits == {
        "train": {f"train/a/1{ends}": "a", f"train/b/1{ends}": "b"},
        "unlabelled": {f"unlabelled/3{ends}": ""},
        "val": {f"val/a/2{ends}": "a"},
    }


def test_frames_are_sorted_by_number_in_the_file_name():
    names = "a/c/10.jpg a/c/9.jpg a/c/0011.png a/d/x2b1.jpg a/d/x1b10.jpg b/c/1.jpg".split()
    actual = video.arrange(names, "PATH", test_fraction=0)
    assert actual.files["a/c"] == ("a/c/9.jpg", "a/c/10.jpg", "a/c/0011.png")
    assert actual.files["a/d"] == ("a/d/x1b10.jpg", "a/d/x2b1.jpg") and actual.channels == 3
    actual = video.arrange(["a/1.mov", "b/1.mkv", "a/1.jpg", "thumb.png"], "PATH", test_fraction=0)
    assert actual.files == {"a/1.mov": ("a/1.mov",), "b/1.mkv": ("b/1.mkv",)}
    assert actual.other == ("a/1.jpg", "thumb.png") and actual.classes == ("a", "b")


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        ([], ["holds no videos (0 other files)", ".mp4, .avi", "or folders of frames"]),
        (["a/1.txt", "b/2.csv"], ["holds no videos (2 other files)"]),
        (["cat/1.mp4", "cat/2.mp4"], ["a single class, 'cat'", "for clips without labels"]),
        (["a/1.mp4", "b/2.mp4", "3.mp4"], ["clips outside of its class folders (3.mp4)"]),
        (["a/1/0.png", "b/2/0.png", "3/0.png"], ["clips outside of its class folders (3)"]),
        (["0.png", "1.png"], ["0.png, 1.png are not in a folder; expected a folder of frames for"]),
        (
            ["a/1/flow_x_1.jpg", "a/1/flow_y_1.jpg", "b/1/img_1.jpg"],
            ["optical flow, such as a/1/flow_x_1.jpg, and other pictures, such as b/1/img_1.jpg"],
        ),
    ],
)
def test_unknown_video_folder_layouts_are_rejected(names, parts):
    with refused("data.path=PATH", *parts) as message:
        video.arrange(names, "PATH")
    assert video.HASH_SUFFIX not in message[0]


# Data sets that are prepared from folders of frames.


def test_video_frames_are_centre_cropped_to_the_frame_size(load, tmp_path):
    content = FOUR | several("b/3", count=5)
    opened = load(unpack(tmp_path, content), test_fraction=0.4)
    actual = examples(opened) | examples(opened, "test")
    assert len(examples(opened, "test")) == 2
    assert sorted(actual) == ["a/1", "a/2", "b/1", "b/2", "b/3"]
    for name, (c, clip) in actual.items():
        assert c == name[0] and clip.dtype == np.uint8
        np.testing.assert_array_equal(clip, of_stills(name, 5 if name == "b/3" else 3))
    assert dict(opened.info.metadata) == {"kind": "video", "shape": [None, 8, 8, 3], "skipped": []}
    assert clips.kind.describe((None, 8, 8, 3)) == "many lengths"
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_archive_of_video_frames_in_any_order_gives_the_same_prepared_set(load, tmp_path, suffix):
    mixed = dict(sorted(FOUR.items(), key=lambda item: item[0][::-1]))
    opened = load(pack(tmp_path / f"pack{suffix}", {f"in/{k}": v for k, v in mixed.items()}))
    actual = examples(opened) | examples(opened, "test")
    assert sorted(actual) == ["in/a/1", "in/a/2", "in/b/1", "in/b/2"]
    for name, (c, clip) in actual.items():
        assert c == name[3]
        np.testing.assert_array_equal(clip, of_stills(name[3:]))
    assert opened.info.metadata["shape"] == [3, 8, 8, 3]
    inside = load(f"{tmp_path}/pack{suffix}/in/a", test_fraction=0.0)
    assert classes_of(inside) == {"1": "", "2": ""} and "label" not in inside.info.features
    with refused("has no folder 'no'"):
        load(f"{tmp_path}/pack{suffix}/no")


def test_large_frames_are_downsized_and_small_frames_unchanged(load, tmp_path):
    large, small = (40, 60, 3), (10, 9, 3)
    unpack(tmp_path, several("1", shape=large) | several("2", shape=small))
    opened = load(tmp_path, test_fraction=0.0)
    assert opened.info.metadata["shape"] == [3, SIZE, SIZE, 3]
    actual = examples(opened)
    for frame, i in zip(actual["1"][1], (8, 9, 10), strict=True):
        whole = Image.fromarray(pixels_of(f"1/f{i}.png", large))
        resized = np.asarray(whole.resize((24, SIZE), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(frame, resized[:, 4:20])
    records = opened.as_data_source("train", file_format="array_record")
    [record] = [record for record in records if record["file"] == b"2"]
    cut = np.stack([pixels_of(f"2/f{i}.png", small)[:9] for i in (8, 9, 10)])
    np.testing.assert_array_equal(record["clip"], cut)
    assert actual["2"][1].shape == (3, SIZE, SIZE, 3)
    np.testing.assert_allclose(actual["2"][1].mean((1, 2)), cut.mean((1, 2)), atol=8)


def flow(clip, *numbers, axes="xy"):
    names = [f"{clip}/flow_{axis}_{n:05d}.png" for axis in axes for n in numbers]
    return {name: picture(name, SHAPE[:2]) for name in names}


def test_flow_frames_become_two_channels(load, tmp_path):
    content = flow("a/1", 1, 2, 10) | flow("b/1", 1, 2, 3)
    opened = load(pack(tmp_path / "pack.zip", content), test_fraction=0.0)
    assert opened.info.metadata["shape"] == [3, 8, 8, 2]
    c, clip = examples(opened)["a/1"]
    planes = [
        [pixels_of(f"a/1/flow_{axis}_{n:05d}.png", SHAPE[:2])[:, 2:10] for axis in "xy"]
        for n in (1, 2, 10)
    ]
    np.testing.assert_array_equal(clip, np.moveaxis(np.array(planes), 1, 3))
    assert c == "a"


def test_labels_of_clips_are_found_without_decompressing_them(tmp_path, monkeypatch):
    path = unpack(tmp_path / "clips", FOUR)
    settings = data_config(name="video", path=str(path), dir=str(tmp_path), frame_size=SIZE)
    opened = source.load(settings, "train+test", "video")
    with monkeypatch.context() as patch:
        patch.setattr(zlib, "decompress", lambda _: pytest.fail("a clip is decompressed"))
        labels = opened.labels
    assert labels.tolist() == [example.label for example in opened.read(np.arange(4))]
    assert sorted(labels) == [0, 0, 1, 1]


# Clips that cannot be read.


BAD = [
    ({"a/2/f9.png": b""}, "a/2: f9.png: is empty"),
    ({"a/2/f9.png": b"text"}, f"a/2: f9.png: {GENERIC}"),
    ({"a/2/f9.png": picture("cut")[:60]}, "a/2: f9.png: is"),
    (stills("a/2", 1, (9, 9, 3)), "a/2: its frames have from 8 to 9 pixels a side"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_unreadable_clip_stops_or_is_skipped(load, tmp_path, changes, reason):
    unpack(tmp_path, FOUR | changes)
    with refused("1 of the clips in", f"cannot be read ({reason}", "on_error=skip"):
        load(tmp_path, test_fraction=0.0)
    opened = load(tmp_path, test_fraction=0.0, on_error="skip")
    assert classes_of(opened) == {"a/1": "a", "b/1": "b", "b/2": "b"}
    [skipped] = opened.info.metadata["skipped"]
    assert skipped.startswith(reason) and opened.info.metadata["shape"] == [3, 8, 8, 3]


def test_warning_counts_unreadable_clips_and_names_the_first(load, tmp_path):
    unpack(tmp_path, FOUR | dict.fromkeys(("a/1/f8.png", "b/1/f8.png", "b/1/f9.png"), b"no"))
    reasons = f"a/1: f8.png: {GENERIC}, b/1: f8.png: {GENERIC}"
    with refused(f"2 of the clips in {tmp_path} cannot be read ({reasons})"):
        load(tmp_path, test_fraction=0.0)
    unpack(tmp_path, dict.fromkeys(("a/2/f8.png", "b/2/f8.png"), b"no"))
    with refused("none of the 4 clips of 'train' in", "and 1 more); repair them"):
        load(tmp_path, test_fraction=0.0, on_error="skip")


def test_unpaired_optical_flow_frame_is_rejected(load, tmp_path):
    unpack(tmp_path, flow("a/1", 1, 2) | flow("b/1", 1, 2) | flow("b/1", 3, axes="y"))
    with refused("b/1: one of flow_x_00003.png and flow_y_00003.png is missing"):
        load(tmp_path, test_fraction=0.0)


def test_clips_above_the_byte_limit_are_rejected(load, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_CLIP", 2**20)
    shape = (512, 512, 3)  # one frame has three quarters of MAX_CLIP bytes
    white = {f"a/2/{i}.png": picture("white", shape) for i in range(2)}
    unpack(tmp_path, several("a/1", "b/1") | white)
    with refused("a/2: 1.png: has more than 1 MiB of frames; cut it, or reduce data.frame_size"):
        load(tmp_path, test_fraction=0.0, frame_size=512)
    assert set(classes_of(load(tmp_path, test_fraction=0.0))) == {"a/1", "a/2", "b/1"}


def test_interleaved_archive_frames_of_too_many_clips_are_rejected(load, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_INCOMPLETE", 8 * 8 * 3 * 3)
    assert len(examples(load(unpack(tmp_path / "set", FOUR), test_fraction=0.0))) == 4
    mixed = dict(sorted(FOUR.items(), key=lambda item: item[0][::-1]))
    with refused("the frames of 4 clips, such as", "are mixed in the archive; unpack it"):
        load(pack(tmp_path / "mixed.tar", mixed), test_fraction=0.0)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"path": ""}, "data.name='video' needs data.path"),
        ({"path": "no/where"}, "does not exist"),
        ({"test_fraction": 1.0}, "data.test_fraction must be in [0, 1), got 1.0"),
        ({"frame_size": 0}, "data.frame_size must be in [1, "),
    ],
)
def test_wrong_video_settings_are_rejected(load, tmp_path, changes, part):
    unpack(tmp_path, FOUR)
    with refused(part):
        load(changes.pop("path", tmp_path), **changes)


def test_frame_folders_of_prepared_videos_are_not_listed_again(load, tmp_path, monkeypatch):
    unpack(tmp_path, FOUR)
    before = load(tmp_path).data_dir
    smaller = load(tmp_path, frame_size=4)
    assert smaller.data_dir != before and smaller.info.metadata["shape"] == [3, 4, 4, 3]
    monkeypatch.setattr(video, "arrange", None)
    assert load(tmp_path).data_dir == before
    (tmp_path / "a/1/f8.png").unlink()
    with pytest.raises(TypeError):  # Listing a changed folder calls `arrange`, here None.
        load(tmp_path)


# Windows of frames.


def numbered(count):
    """A clip whose frames have their numbers."""
    return np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("t", "count", "stride", "expected"),
    [
        (10, 4, 1, [3, 4, 5, 6]),
        (9, 4, 1, [2, 3, 4, 5]),
        (10, 4, 2, [1, 3, 5, 7]),
        (7, 4, 2, [0, 2, 4, 6]),
        (4, 4, 1, [0, 1, 2, 3]),
        (3, 8, 1, [0, 1, 2, 0, 1, 2, 0, 1]),
        (5, 4, 2, [0, 2, 4, 1]),
        (1, 3, 2, [0, 0, 0]),
    ],
)
def test_evaluation_window_is_centred_and_repeats_short_clips(t, count, stride, expected):
    actual = clips.read_window(numbered(t), count, stride)
    assert actual.shape == (count, 2, 2, 3) and actual.dtype == np.uint8
    np.testing.assert_array_equal(actual, numbered(t)[expected])
    if t < (count - 1) * stride + 2:  # Only one start frame is possible.
        drawn = clips.read_window(numbered(t), count, stride, np.random.default_rng(0))
        np.testing.assert_array_equal(drawn, actual)


def test_random_window_of_frames_covers_all_starts_and_is_reproducible():
    def starts(seed):
        rng = np.random.default_rng(seed)
        actual = [clips.read_window(numbered(12), 4, 3, rng)[:, 0, 0, 0] for _ in range(100)]
        for window in actual:
            np.testing.assert_array_equal(np.diff(window), 3)
        return [int(window[0]) for window in actual]

    assert starts(0) == starts(0) != starts(1)
    assert set(starts(0)) == {0, 1, 2}


def reader_of(crops):
    """A reader of clips of ten frames."""

    def read(indices):
        assert len(indices) == 1  # All clips of a batch would need too much memory.
        return [Example(numbered(10), 0)]

    return ReadClips(SimpleNamespace(read=read), crops, seed=0)


def test_training_views_of_a_clip_are_random_windows_of_frames():
    reader = reader_of(Crops((), (), 2, frames=(4, 4)))
    views = reader(0, np.arange(20))["input"]["views"]
    assert views.shape == (20, 2, 4, 2, 2, 3)
    starts = views[:, :, 0, 0, 0, 0]
    assert set(starts.flat) == set(range(7)) and (starts[:, 0] != starts[:, 1]).any()
    again = reader(0, np.arange(20)[::-1])["input"]["views"]
    np.testing.assert_array_equal(again[::-1], views)


def test_views_of_different_strides_get_windows_of_the_same_length():
    views = [{"frames": 4, "stride": stride} for stride in (1, 2)]
    windows = reader_of(clips.find_crops(2, views, ()))(0, np.arange(3))["input"]["views"]
    assert windows.shape == (3, 2, 7, 2, 2, 3)
    with refused("all views have the same number of frames; set augment.frames"):
        clips.find_crops(2, [*views, {"frames": 8, "stride": 1}], ())


@pytest.mark.parametrize("shape", [None, [8, 16, 16], [8, 16, 12, 3], [0, 16, 16, 3], [8, 9, 9, 4]])
def test_prepared_clips_of_an_impossible_shape_are_refused(shape, tmp_path):
    with refused(f"{tmp_path} is damaged (the clips have shape {shape})"):
        clips.open_clips(tmp_path, {}, {"shape": shape}, {})
