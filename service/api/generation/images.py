"""The images of a chat: read, measured, put into the prompt by their sizes, and decoded once the prompt fits."""

import hashlib
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from service.api.generation.chat_prompt import ImageSource, MeansChat, image_sources
from service.api.generation.data_urls import read_data_url
from service.api.http.call import Call
from service.api.schema.chat import ChatCompletionRequest
from service.api.served import ServedModel, Vision
from service.engine.request import Medium, PlacedMedium
from service.errors import ContextLengthExceeded, RequestError
from service.media.pixels import Picture
from service.media.tiles import Tiling

DIGEST_BYTES = 32
COARSE = "low"  # the `detail` that asks for few tokens


class SeenImage(NamedTuple):
    """An image whose size is known."""

    source: ImageSource
    content: bytes
    tiling: Tiling


class SeenImages:
    """The images of one request."""

    def __init__(self, call: Call, vision: Vision, images: Sequence[SeenImage]) -> None:
        """Take the images in the order of their messages."""
        self._call, self._vision, self._images = call, vision, images

    @property
    def texts(self) -> list[str]:
        """What takes the place of each image in the prompt."""
        return [self._vision.text.shown(image.tiling.rows, image.tiling.columns) for image in self._images]

    async def placed(self, prompt_ids: Sequence[int], num_images: int) -> tuple[PlacedMedium, ...]:
        """Decode the images of a prompt, and return their tiles in their places.

        Args:
            prompt_ids: the tokens of the prompt.
            num_images: how many of the images it has: the last ones, if older turns were left out.

        Raises:
            UnreadableImage, ImageTooLarge, ImageTooLaborious: an image cannot be decoded.
            BodyBytesFull: too much is held in memory already.
            RequestError: the tokenizer does not keep the places of images apart.
        """
        shown = self._images[len(self._images) - num_images :]
        starts = _starts(prompt_ids, self._vision, sum(image.tiling.num_tiles for image in shown))
        self._call.hold_bytes(sum(_num_bytes(image) for image in self._images))
        tiles = [tile for image in shown for tile in await self._tiles(image)]
        return tuple(
            PlacedMedium(Medium(_digest(tile), tile), start, self._vision.num_rows)
            for start, tile in zip(starts, tiles, strict=True)
        )

    async def _tiles(self, image: SeenImage) -> list[Picture]:
        tiler, media = self._vision.tiler, self._call.api.media
        pictures = await _of_call(
            self._call,
            media.pictures(image.content, image.tiling.resizes, tiler.resampling, param=image.source.param),
        )
        return tiler.tiles(image.tiling, pictures)


async def see(call: Call, model: ServedModel, vision: Vision, body: ChatCompletionRequest | MeansChat) -> SeenImages:
    """Read the images of a chat, and measure them; none is decoded.

    Raises:
        InvalidParameter, UnsupportedParameter: an image is not where or as it may be.
        UnreadableImage, ImageTooLarge, ImageTooLaborious: it is no image.
        ContextLengthExceeded: the context has no room for so many images.
    """
    sources = await call.make_prompt(partial(image_sources, key=call.cache_salt), body, model)
    if len(sources) * vision.num_rows > model.max_model_len:
        raise ContextLengthExceeded(
            prompt_tokens=len(sources) * vision.num_rows,
            max_tokens=0,
            max_model_len=model.max_model_len,
            param="messages",
            is_estimate=True,
        )
    images = []
    for source in sources:
        content = await call.run_in_thread(partial(read_data_url, source.url, source.param))
        size = await _of_call(call, call.api.media.image_size(content, param=source.param))
        tiling = vision.tiler.tiling(size, is_coarse=source.detail == COARSE)
        images.append(SeenImage(source, content, tiling))
    return SeenImages(call, vision, images)


async def _of_call[T](call: Call, work: Coroutine[Any, Any, T]) -> T:
    return await call.unless_disconnected(call.deadline.within(work))


def _starts(prompt_ids: Sequence[int], vision: Vision, num_tiles: int) -> list[int]:
    """Return the position of the first row of each tile."""
    places = [position for position, token_id in enumerate(prompt_ids) if token_id == vision.token_id]
    starts = places[:: vision.num_rows]
    are_whole = all(
        place == starts[index // vision.num_rows] + index % vision.num_rows for index, place in enumerate(places)
    )
    if len(places) != num_tiles * vision.num_rows or not are_whole:
        raise RequestError("The model's tokenizer does not keep the places of these images apart.")
    return starts


def _num_bytes(image: SeenImage) -> int:
    """Return what an image takes in memory: its file, and its pictures twice while they are cut."""
    wanted = sum(resize.size.num_bytes for resize in image.tiling.resizes if resize.is_wanted)
    return len(image.content) + 2 * wanted


def _digest(tile: Picture) -> bytes:
    return hashlib.blake2b(tile.tobytes(), digest_size=DIGEST_BYTES).digest()
