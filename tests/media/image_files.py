"""Image files that are written for tests, in memory."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

SIZE = (37, 23)  # width, height


def drawing(width: int = SIZE[0], height: int = SIZE[1]) -> Image.Image:
    """Return a picture in which no two corners are equal, and no edge is plain."""
    rows, columns = np.mgrid[:height, :width]
    red, green = 255 * columns // max(width - 1, 1), 255 * rows // max(height - 1, 1)
    return Image.fromarray(np.stack([red, green, (rows * 7 + columns * 13) % 256], axis=-1).astype(np.uint8))


def image_file(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """Return a file of this kind."""
    output = io.BytesIO()
    (drawing() if image is None else image).save(output, kind, **options)
    return output.getvalue()


def png(width: int, height: int, data: bytes = b"", *, depth: int = 8, colour: int = 2) -> bytes:
    """Return a PNG whose header may say anything about its data."""
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def modes() -> dict[str, bytes]:
    """Return a file for each way in which pixels are stored."""
    image = drawing()
    deep = Image.fromarray((np.asarray(image.convert("L")).astype(np.uint16) * 257).astype(np.uint16))
    return {
        "rgb": image_file("PNG"),
        "rgba": image_file("PNG", image.convert("RGBA")),
        "grey": image_file("PNG", image.convert("L")),
        "grey with alpha": image_file("PNG", image.convert("LA")),
        "bilevel": image_file("PNG", image.convert("1")),
        "palette": image_file("PNG", image.convert("P")),
        "palette with transparency": image_file("PNG", image.convert("P"), transparency=3),
        "16 bits": image_file("PNG", deep),
        "interlaced gif": image_file("GIF", image.convert("P"), interlace=1),
        "animated gif": image_file("GIF", image, save_all=True, append_images=[image.rotate(180)]),
        "jpeg": image_file("JPEG", quality=95),
        "progressive jpeg": image_file("JPEG", progressive=True),
        "cmyk jpeg": image_file("JPEG", image.convert("CMYK")),
        "grey jpeg": image_file("JPEG", image.convert("L")),
        "webp": image_file("WEBP", lossless=True),
        "webp with alpha": image_file("WEBP", image.convert("RGBA"), lossless=True),
    }


def opened(content: bytes) -> Image.Image:
    """Open a file for transformers: grey of 16 bits, which Pillow clips at 255, as its twin of 8 bits."""
    image = Image.open(io.BytesIO(content))
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I;16") else image
