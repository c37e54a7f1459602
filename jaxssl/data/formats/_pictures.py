"""Read image files and check that Pillow can decode them."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from jaxssl.data.decoders import decoding, files

GROUP = 2**18  # bytes of image files that a thread checks in one task
CHANNELS = 3


def read_checked(
    pictures: Iterable[tuple[str, files.ReadBytes]], channels: int = CHANNELS
) -> Iterator[tuple[str, bytes, tuple[int, int] | str]]:
    """Read image files and check in threads that they decode. The order is kept.

    Args:
        pictures: names, and functions that read the files.
        channels: number of channels to decode to.

    Yields:
        Name, content, and (height, width), or the reason why the image cannot be decoded.
    """

    def check(group: Sequence[tuple[str, bytes, str]]) -> list[tuple]:
        return [(name, data, error or image_size(data, channels)) for name, data, error in group]

    def groups() -> Iterator[list[tuple[str, bytes, str]]]:
        group, total = [], 0
        for name, read in pictures:
            try:
                data, error = read(), ""
            except OSError as reason:
                data, error = b"", str(reason)
            group, total = [*group, (name, data, error)], total + len(data)
            if total > GROUP:
                yield group
                group, total = [], 0
        yield group

    threads = files.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        running = deque()
        for group in groups():
            running.append(pool.submit(check, group))
            if len(running) > threads:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def image_size(data: bytes, channels: int = CHANNELS) -> tuple[int, int] | str:
    """Decode an image and return its height and width, or the reason why that fails."""
    if not data:
        return "is empty"
    try:
        picture = decoding.open_picture(data, channels, upright=True)
    except Exception as error:  # Pillow's decoders raise many exception types for damaged data.
        return str(error) or type(error).__name__
    return picture.height, picture.width
