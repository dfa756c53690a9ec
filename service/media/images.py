"""An image file to pixels, with Pillow; imported only by a worker process, since the file's author is not trusted.

The format is recognized by its first bytes, and no other of Pillow's readers is tried. Sizes are checked before a pixel
is decoded. What Pillow says of a file is dropped.

Source: https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.open (formats),
transformers `image_transforms.py` (convert_to_rgb), https://www.w3.org/TR/png-3/ (tRNS, eXIf)
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from service.errors import ImageTooLarge, ServiceError, UnreadableImage
from service.media.pixels import Filter, Resize, Size, header

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 50_000_000
MAX_ASPECT = 200  # of the longer edge to the shorter
ORIENTATION = 0x0112  # the tag of EXIF
ORIENTATIONS = range(1, 9)
WHITE = 255
# How Pillow widens grey of fewer bits than eight.
GREY_STEPS = {1: 255, 2: 85, 4: 17}
PNG_HEAD_BYTES = 8
TURNED = frozenset({5, 6, 7, 8})  # orientations that exchange width and height


class ImageFormat(NamedTuple):
    """A format of files by its first bytes, in Pillow's name."""

    name: str
    magic: bytes
    offset: int = 0


FORMATS = (
    ImageFormat("PNG", b"\x89PNG\r\n\x1a\n"),
    ImageFormat("JPEG", b"\xff\xd8\xff"),
    ImageFormat("WEBP", b"WEBP", 8),
    ImageFormat("GIF", b"GIF8"),
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
        return header(_shown(image, content), 0)


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
        size, orientation = _shown(image, content), _orientation(image, content)
        picture = _upright(_opaque(image, content), orientation)
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


def _shown(image: "Image", content: bytes) -> Size:
    """Return the size of an image after the rotation that its camera noted."""
    width, height = image.size
    return Size(height, width) if _orientation(image, content) in TURNED else Size(width, height)


def _orientation(image: "Image", content: bytes) -> int:
    """Return the orientation that an image's EXIF states; 1 if there is none, or none that can be read."""
    from PIL.Image import Image as AnyImage

    if image.format == "PNG" and "exif" not in image.info and (late := _exif_of_png(content)) is not None:
        image.info["exif"] = b"Exif\x00\x00" + late
    try:
        stated = AnyImage.getexif(image).get(ORIENTATION)  # the method of a PNG would decode its pixels
    except MemoryError:
        raise
    except Exception:  # as of a file: a reader raises anything
        return 1
    return stated if isinstance(stated, int) and stated in ORIENTATIONS else 1


def _exif_of_png(content: bytes) -> bytes | None:
    """Return the EXIF of a PNG, which may come after its pixels."""
    start = PNG_HEAD_BYTES
    while start < len(content):
        begin = start + 8
        end = begin + int.from_bytes(content[start : start + 4])
        if content[start + 4 : begin] == b"eXIf":
            return content[begin:end]
        start = end + 4
    return None


def _opaque(image: "Image", content: bytes) -> "Image":
    """Return an image in colours of eight bits, on white where it is transparent.

    As transformers' `convert_to_rgb`, which takes grey of 16 bits for white, and does not find the transparent value of
    a PNG whose grey has fewer bits, or whose colours have more, than eight.
    """
    from PIL import Image

    transparent = image.info.get("transparency")
    if "A" in image.getbands() or (image.mode == "P" and transparent is not None):
        coloured = image if image.mode == "RGBA" else image.convert("RGBA")
        opaque = Image.new("RGB", image.size, (WHITE, WHITE, WHITE))
        opaque.paste(coloured, mask=coloured.getchannel("A"))
        return opaque
    is_deep = image.mode.startswith("I")
    if transparent is None and not is_deep:
        return image.convert("RGB")
    bits = content[24] if image.format == "PNG" else 8  # of a channel, by the header
    if is_deep:
        values = np.asarray(image)
        grey = (values >> 8).astype(np.uint8)
        if transparent is not None:
            grey[values == transparent] = WHITE
        return Image.fromarray(grey).convert("RGB")
    found: Any = image.info.pop("transparency")  # which Pillow would convert, too
    stated: tuple[int, ...] = found if isinstance(found, tuple) else (found,)
    if bits == 16:
        stated = tuple(value >> 8 for value in stated)
    elif image.mode == "L":
        stated = tuple(value * GREY_STEPS.get(bits, 1) for value in stated)
    pixels = np.array(image.convert("L") if image.mode == "1" else image)
    is_transparent = np.ones(pixels.shape[:2], bool)
    for channel, value in enumerate(stated):
        is_transparent &= (pixels if pixels.ndim == 2 else pixels[..., channel]) == value
    pixels[is_transparent] = WHITE
    return Image.fromarray(pixels).convert("RGB")


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
