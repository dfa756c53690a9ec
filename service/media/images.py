"""An image file to pixels, with Pillow; imported by a worker process alone, since the file's author is not trusted.

The format is recognized by its first bytes, and no other of Pillow's readers is tried. Sizes are checked before a pixel
is decoded. What Pillow says of a file is dropped.

Source: https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.open (formats)
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from service.errors import ImageTooLarge, ServiceError, UnreadableImage
from service.media.pixels import Filter, Resize, Size, header

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 50_000_000
MAX_ASPECT = 200  # of the longer edge to the shorter
ORIENTATION = 0x0112  # the tag of EXIF
TURNED = frozenset({5, 6, 7, 8})  # orientations that exchange width and height


class Format(NamedTuple):
    """A format of files by its first bytes, in Pillow's name."""

    name: str
    magic: bytes
    offset: int = 0


FORMATS = (
    Format("PNG", b"\x89PNG\r\n\x1a\n"),
    Format("JPEG", b"\xff\xd8\xff"),
    Format("WEBP", b"WEBP", 8),
    Format("GIF", b"GIF8"),
)


def image_size(content: bytes, param: str) -> bytes:
    """Return the size of an image from its header, as `pixels` describes it; nothing is decoded.

    Args:
        content: the file.
        param: the request field that an error names.

    Raises:
        UnreadableImage: it is no image of a supported format.
        ImageTooLarge: it has too many pixels.
    """
    with _opened(content, param) as image:
        return header(_shown(image), 0)


def decode_image(content: bytes, resizes: Sequence[Resize], resampling: Filter, param: str) -> bytearray:
    """Return an image in the sizes that are wanted, as `pixels` describes them; of an animation, its first picture.

    Args:
        content: the file.
        resizes: the sizes, each made of the one before.
        resampling: how pixels are resampled.
        param: the request field that an error names.

    Raises:
        UnreadableImage: it is no image of a supported format.
        ImageTooLarge: it has too many pixels.
    """
    with _opened(content, param) as image:
        size, orientation = _shown(image), _orientation(image)
        picture = _upright(image.convert("RGB"), orientation)
        answer = bytearray(header(size, sum(resize.is_wanted for resize in resizes)))
        for resize in resizes:
            if picture.size != resize.size:
                picture = picture.resize(resize.size, resampling)
            if resize.is_wanted:
                answer += picture.tobytes()
        return answer


@contextmanager
def _opened(content: bytes, param: str) -> "Iterator[Image]":
    """Open a file, and make one error of all that Pillow raises about it."""
    from PIL import Image

    if not content:
        raise UnreadableImage("is empty", param=param)
    name = next((known.name for known in FORMATS if content.startswith(known.magic, known.offset)), None)
    if name is None:
        raise UnreadableImage("is of no supported format", param=param)
    Image.MAX_IMAGE_PIXELS = None  # our own bounds come before anything is decoded
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content), formats=(name,)) as image:
            _check(Size(*image.size), param)
            yield image
    except (ServiceError, MemoryError):
        raise
    except Exception as error:  # a reader raises anything: OSError, SyntaxError, struct.error, IndexError, …
        raise UnreadableImage("cannot be decoded", param=param) from error


def _check(size: Size, param: str) -> None:
    if not min(size):
        raise UnreadableImage("has no pixel", param=param)
    # Defends against T19.
    if size.width * size.height > MAX_PIXELS:
        raise ImageTooLarge(MAX_PIXELS, param=param)
    if max(size) > MAX_ASPECT * min(size):
        raise UnreadableImage(f"is more than {MAX_ASPECT} times as long as it is wide", param=param)


def _shown(image: "Image") -> Size:
    """Return the size of an image after the rotation that its camera noted."""
    width, height = image.size
    return Size(height, width) if _orientation(image) in TURNED else Size(width, height)


def _orientation(image: "Image") -> int:
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # one that comes after the pixels would have to be looked for by decoding them
    return int(image.getexif().get(ORIENTATION, 1))


def _upright(image: "Image", orientation: int) -> "Image":
    """Return an image as its camera was held."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image
