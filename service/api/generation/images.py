"""The images of a chat: read, measured, put into the prompt by their sizes, and decoded once the prompt fits."""

import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from service.api.conversation import ImagePart
from service.api.generation.chat_prompt import Conversational, image_sources
from service.api.generation.data_urls import read_data_url
from service.api.http.call import Call
from service.api.served import ServedModel, Vision
from service.engine.request import Medium, PlacedMedium
from service.errors import ContextLengthExceeded, InvalidParameter, RequestError
from service.media.pixels import Shown

DIGEST_BYTES = 32
HTTPS = "https://"
COARSE = "low"  # the `detail` that asks for few tokens


class SeenImage(NamedTuple):
    """An image whose size is known."""

    param: str  # the field that it came from
    content: bytes
    key: bytes  # the content's digest, with the salt of its request
    plan: Any  # of the model's cutter


class SeenImages:
    """The images of one request."""

    def __init__(self, call: Call, model: ServedModel, vision: Vision, images: Sequence[SeenImage]) -> None:
        """Take the images in the order of their messages."""
        self._call, self._model_name, self._vision, self._images = call, model.name, vision, images

    @property
    def texts(self) -> list[str]:
        """What takes the place of each image in the prompt."""
        return [self._vision.text.shown(image.plan.rows, image.plan.columns) for image in self._images]

    async def placed(self, prompt_ids: Sequence[int], numbers: Sequence[int]) -> tuple[PlacedMedium, ...]:
        """Decode the images of a prompt, and return their tiles in their places.

        Args:
            prompt_ids: the tokens of the prompt.
            numbers: which of the images it has, if older turns were left out.

        Raises:
            UnreadableImage, ImageTooLarge, ImageTooLaborious: an image cannot be decoded.
            BodyBytesFull: too much is held in memory already.
            RequestError: the tokenizer does not keep the places of images apart.
        """
        images, cutter = [self._images[number] for number in numbers], self._vision.cutter
        counts = [count for image in images for count in cutter.num_rows(image.plan)]
        places = sum(map(self._vision.shapes.places_for, counts))
        if places > self._vision.shapes.num_places:
            most = self._vision.shapes.num_places * self._vision.shapes.place_rows
            message = f"The images of this request take {sum(counts)} tokens; about {most} fit. Send fewer."
            raise InvalidParameter(message, param="messages")
        has_lines = self._vision.text.has_lines
        lines = [image.plan.columns if has_lines else None for image in images for _ in cutter.num_rows(image.plan)]
        starts = _starts(prompt_ids, self._vision.token_id, list(zip(counts, lines, strict=True)))
        body = self._call.long_body
        num_bytes = sum(_num_bytes(image) for image in self._images)
        self._call.hold_bytes(num_bytes + (0 if body is None else len(body.content)))
        parts = [part for image in images for part in await self._parts(image)]
        media = tuple(
            PlacedMedium(Medium(_digest(part), part.features, part.num_rows), start, part.grid, line)
            for start, part, line in zip(starts, parts, lines, strict=True)
        )
        series = self._call.api.metrics.of_model(self._model_name)
        series.images.inc(len(images))
        series.image_tokens.inc(sum(placed.num_rows for placed in media))
        self._call.log_fields["images"] = len(images)
        return media

    async def _parts(self, image: SeenImage) -> list[Shown]:
        cutter, media = self._vision.cutter, self._call.api.media
        pictures = await _of_call(
            self._call,
            media.pictures(
                image.content,
                image.plan.resizes,
                cutter.resampling,
                key=image.key,
                param=image.param,
                client=self._call.key,
            ),
        )
        return cutter.shown(image.plan, pictures)


async def _see(
    call: Call, model: ServedModel, body: Conversational, *, cache_salt: bytes, is_answered: bool
) -> SeenImages | None:
    """Read the images of a chat, and measure them; none is decoded. Return None if the model reads only text.

    Raises:
        InvalidParameter, UnsupportedParameter: an image is not where or as it may be.
        UnreadableImage, ImageTooLarge, ImageTooLaborious: it is no image.
        BodyTooLarge: the body is too large without its images.
        ContextLengthExceeded: the context has no room for the images.
    """
    vision = model.vision
    if vision is None:
        call.check_text_bytes(0)
        return None
    sources = await call.make_prompt(partial(image_sources, key=call.seal_key), body, model)
    call.check_text_bytes(sum(len(source.url) for source in sources))
    if is_answered and len(sources) * vision.cutter.fewest_rows > model.max_model_len:
        raise ContextLengthExceeded(
            prompt_tokens=len(sources) * vision.cutter.fewest_rows,
            max_tokens=0,
            max_model_len=model.max_model_len,
            param="messages",
            is_estimate=True,
        )
    images, num_held = [], 0 if call.long_body is None else len(call.long_body.content)
    for source in sources:
        content, is_remote = await _content(call, source, num_held)
        num_held += len(content) if is_remote else 0
        key = await call.run_in_thread(partial(_content_key, content, cache_salt))
        size = await _of_call(call, call.api.media.image_size(content, key=key, param=source.at, client=call.key))
        plan = vision.cutter.plan(size, is_coarse=source.detail == COARSE)
        images.append(SeenImage(source.at, content, key, plan))
    return SeenImages(call, model, vision, images)


async def made_prompt[T](
    call: Call,
    model: ServedModel,
    body: Conversational,
    make: Callable[..., T],
    *,
    cache_salt: bytes,
    is_answered: bool = True,
) -> tuple[T, SeenImages | None]:
    """Return `make(body, model, key=, images=)`, as `chat_prompt` is called, and the images that it was made with.

    Args:
        call: the request.
        model: the model that answers.
        body: what asks for the answer to a chat.
        make: a function of a module, which another process can be sent.
        cache_salt: requests with different ones share no decoded image.
        is_answered: whether the images must fit into the context.

    Raises:
        RequestError: an image is not as it may be, or the context has no room for all; or as `make`.
        DeadlineExceeded, BodyTooLaborious: it takes too much time, or memory.
    """
    seen = await _see(call, model, body, cache_salt=cache_salt, is_answered=is_answered)
    images = None if seen is None else seen.texts
    return await call.make_prompt(partial(make, key=call.seal_key, images=images), body, model), seen


async def _content(call: Call, source: ImagePart, num_held: int) -> tuple[bytes, bool]:
    """Return the file of an image, and whether it came from elsewhere, beside bytes that the request holds already."""
    remote = call.api.remote_images
    if remote is not None and source.url.lstrip()[: len(HTTPS)].lower() == HTTPS:
        fetching = remote.fetch(source.url.strip(), source.at, lambda num_bytes: call.hold_bytes(num_held + num_bytes))
        return await _of_call(call, fetching), True
    return await call.run_in_thread(partial(read_data_url, source.url, source.at)), False


def _content_key(content: bytes, cache_salt: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=cache_salt).digest()


async def _of_call[T](call: Call, work: Coroutine[Any, Any, T]) -> T:
    return await call.unless_disconnected(call.deadline.within(work))


def _starts(prompt_ids: Sequence[int], token_id: int, parts: Sequence[tuple[int, int | None]]) -> list[int]:
    """Return the position of the first row of each part of an image, whose lines have a length or none.

    Raises:
        RequestError: they are elsewhere in the prompt, or not as many.
    """
    places = [position for position, other in enumerate(prompt_ids) if other == token_id]
    starts: list[int] = []
    taken = 0
    for count, line in parts:
        own = places[taken : taken + count]
        offsets = range(count) if line is None else [row + row // line for row in range(count)]
        if len(own) == count and [place - own[0] for place in own] == list(offsets):
            starts.append(own[0])
        taken += count
    if len(starts) != len(parts) or len(places) != taken:
        raise RequestError("The model's tokenizer does not keep the places of these images apart.")
    return starts


def _num_bytes(image: SeenImage) -> int:
    """Return what an image takes in memory: its file, and its pictures twice while they are cut."""
    wanted = sum(resize.size.num_bytes for resize in image.plan.resizes if resize.is_wanted)
    return len(image.content) + 2 * wanted


def _digest(part: Shown) -> bytes:
    digest = hashlib.blake2b(repr(part.grid).encode(), digest_size=DIGEST_BYTES)
    for array in part.features if isinstance(part.features, tuple) else (part.features,):
        digest.update(array.tobytes())
    return digest.digest()
