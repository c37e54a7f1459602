"""Videos as data sets, written by PyAV and decoded again."""

import io
import sys

import numpy as np
import pytest
import video_cases
from file_cases import pack, refused, unpack
from video_cases import SIZE, classes_of, examples, several

from jaxssl.data.formats import video as frames

pytestmark = pytest.mark.fast

HEIGHT, WIDTH, COUNT = 32, 48, 8
NO_VIDEO = "is not a video in a supported format, or is cut short"
IDENTITY = b"".join(n.to_bytes(4) for n in (2**16, 0, 0, 0, 2**16, 0, 0, 0, 2**30))
QUARTER = b"".join(n.to_bytes(4) for n in (0, 2**16, 0, 2**32 - 2**16, 0, 0, 0, 0, 2**30))


@pytest.fixture(scope="module")
def load(prepared):
    return video_cases.loader(prepared)


def shown_frames():
    """[8, 32, 48, 3]: ever lighter, the top red, the left dark."""
    out = np.empty((COUNT, HEIGHT, WIDTH, 3), np.uint8)
    out[:] = (60 + 20 * np.arange(COUNT, dtype=np.uint8))[:, None, None, None]
    out[:, : HEIGHT // 2, :, 0] = 220
    out[:, :, : WIDTH // 2] //= 3
    return out


def video(format="mp4", codec="mpeg4", pictures=None):
    """The bytes of a video file."""
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format=format) as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.bit_rate = 4_000_000
        container.start_encoding()  # writes the header, even without frames
        for pixels in shown_frames() if pictures is None else pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def sound():
    av = pytest.importorskip("av")
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def assert_near(clip, expected, most=6):
    assert clip.shape == expected.shape and clip.dtype == np.uint8
    errors = np.abs(clip.astype(float) - expected.astype(float))
    assert errors.mean() < most and errors.mean((1, 2, 3)).max() < 2 * most


@pytest.mark.parametrize("end", [".avi", "/00001.jpg"])
def test_clips_of_one_video_of_ucf101_are_in_one_split(end):
    names = [
        f"{motion}/v_{motion}_g{group:02}_c{clip:02}{end}"
        for motion in ("Archery", "Biking")
        for group in range(1, 26)
        for clip in range(1, 4 + group % 4)
    ]
    splits = frames.arrange(names, "PATH", test_fraction=0.2, split_seed=0).splits
    groups = [{name.rpartition("_c")[0] for name in splits[split]} for split in ("train", "test")]
    assert not groups[0] & groups[1] and len(groups[0] | groups[1]) == 50
    shares = [sum(m in name for name in splits["test"]) / (len(names) / 2) for m in ("Ar", "Bi")]
    np.testing.assert_allclose(shares, 0.2, atol=0.05)


def test_videos_of_all_supported_formats_are_decoded(load, tmp_path):
    formats = dict(zip(frames.SUFFIXES, ("mp4", "avi", "matroska", "matroska", "mov"), strict=True))
    content = {f"{s[1:]}/1{s}": video(format) for s, format in formats.items()}
    content |= {"mov/2.MOV": video("mov", pictures=shown_frames()[:5]), "mov/1.txt": b"no clip"}
    opened = load(pack(tmp_path / "pack.tar", content), test_fraction=0.0, frame_size=HEIGHT)
    actual = examples(opened)
    assert set(actual) == set(content) - {"mov/1.txt"}
    for name, (c, clip) in actual.items():
        assert c == name.partition("/")[0]
        assert_near(clip, shown_frames()[: 5 if name == "mov/2.MOV" else COUNT, :, 8:40])
    assert opened.info.metadata["shape"] == [None, HEIGHT, HEIGHT, 3]
    assert "tensorflow" not in sys.modules


def test_video_frames_are_resized_to_the_configured_size():
    clip = frames._decode_video(video(), 8)
    blocks = shown_frames()[:, :, 8:40].reshape(COUNT, 8, 4, 8, 4, 3).mean((2, 4))
    assert_near(clip, blocks.astype(np.uint8), most=12)


def test_video_rotation_metadata_is_applied():
    """The matrix of its track says: a quarter clockwise."""
    data = video("mov")
    assert data.count(IDENTITY) == 2  # rotation matrices of the movie and of its track
    head, _, tail = data.rpartition(IDENTITY)
    clip = frames._decode_video(head + QUARTER + tail, HEIGHT)
    assert_near(clip, np.rot90(shown_frames(), -1, (1, 2))[:, 8:40])


def test_playlist_is_rejected_as_video(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "secret.mp4").write_bytes(video())
    lists = (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile '{tmp_path}/secret.mp4'\n",
    )
    for text in lists:
        with pytest.raises(OSError, match=f"^{NO_VIDEO}$"):
            frames._decode_video(text.encode(), SIZE)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", NO_VIDEO),
        (lambda: b"text" * 50, NO_VIDEO),
        (lambda: video()[:-400], NO_VIDEO),  # without the index at the end of the file
        (lambda: video("mpegts"), NO_VIDEO),
        (sound, "has no pictures, only sound or data"),
        (lambda: video("avi", pictures=()), "has no frames that can be decoded"),
    ],
)
def test_undecodable_video_stops_or_is_skipped(load, tmp_path, make, reason):
    unpack(tmp_path, {"a/1.mp4": video(), "b/1.mp4": video(), "b/2.avi": make()})
    with refused(f"1 of the clips in {tmp_path} cannot be read (b/2.avi: {reason})"):
        load(tmp_path, test_fraction=0.0)
    opened = load(tmp_path, test_fraction=0.0, on_error="skip")
    assert set(classes_of(opened)) == {"a/1.mp4", "b/1.mp4"}
    assert opened.info.metadata["skipped"] == [f"b/2.avi: {reason}"]


def test_video_above_the_byte_or_pixel_limit_is_rejected(monkeypatch):
    data = video()
    with monkeypatch.context() as patch:
        patch.setattr(frames, "MAX_CLIP", COUNT * SIZE * SIZE * 3 - 1)
        with pytest.raises(OSError, match="has more than 0 MiB of frames"):
            frames._decode_video(data, SIZE)
    monkeypatch.setattr(frames.decoding, "MAX_PIXELS", HEIGHT * WIDTH - 1)
    with pytest.raises(OSError, match="has 48 x 32 pixels in a frame, which is too many"):
        frames._decode_video(data, SIZE)


def test_video_files_need_pyav_and_frame_folders_do_not(load, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    unpack(tmp_path, {"videos/1.mp4": b"", "videos/2.mp4": b""} | several("stills/1"))
    with refused("holds videos, which need PyAV: pip install 'jaxssl[video]'"):
        load(tmp_path / "videos", test_fraction=0.0)
    assert set(classes_of(load(tmp_path / "stills", test_fraction=0.0))) == {"1"}
