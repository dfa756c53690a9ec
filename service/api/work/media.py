"""Media files of clients, decoded in worker processes of their own, each killed with the request that it works for.

Every turn of a chat sends its images again, so an LRU cache holds those that were decoded last.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from service.api.work.text_threads import TextThreads
from service.api.work.turns import ANYONE, Turns, WorkOwner
from service.compile.lru_cache import LruCache
from service.errors import AudioTooLaborious, ImageTooLaborious, PdfTooLaborious, ServiceError
from service.media.decode import decode_audio
from service.media.images import MAX_PIXELS, decode_image, image_size
from service.media.pdf import PdfText, pdf_text, read_pdf_text
from service.media.pixels import CHANNELS, Filter, Picture, Resize, Size, read_pictures, read_size
from service.media.samples import HEADER, SAMPLE_BYTES, SAMPLING_RATE, SPAN_BYTES, Sound, read_sound
from service.media.voice_activity import STEP_SIZE, VoiceActivity
from service.worker.process import MEBIBYTE, WorkerProcess

MAX_PROCESSES = 2  # at the same time, of each kind of media; each may take a processor
MAX_AUDIO_S = 7200.0
AUDIO_PROCESSOR_S, IMAGE_PROCESSOR_S, PDF_PROCESSOR_S = 60.0, 15.0, 20.0  # for one file
BASE_BYTES = 384 * MEBIBYTE  # of memory: the interpreter, the library and its buffers
COPIES = 2  # of a file in memory: as it came, and read
IDLE_S = 60.0  # until a process without calls is ended
MAX_SAMPLES = SAMPLING_RATE * (int(MAX_AUDIO_S) + 1)
MAX_SOUND_BYTES = HEADER.size + SAMPLE_BYTES * MAX_SAMPLES + SPAN_BYTES * (MAX_SAMPLES // STEP_SIZE)
MAX_IMAGE_BYTES = 64 * MEBIBYTE  # of one file
PIXEL_BYTES = 4  # as Pillow stores them, the fourth unused
IMAGE_COPIES = 3  # of the pixels: as they were decoded, with other channels, and turned
MAX_PICTURES_BYTES = 128 * MEBIBYTE
MAX_PDF_BYTES = 25 * MEBIBYTE  # of one file
PDF_OBJECTS_BYTES = 384 * MEBIBYTE  # of memory: its streams unpacked, and what they describe
MAX_PDF_ANSWER_BYTES = 16 * MEBIBYTE
MAX_CACHED_SIZES, MAX_CACHED_BYTES = 4096, 64 * MEBIBYTE  # of images and their pixels
ENTRY_BYTES = 1000  # of an image besides its pixels


class MediaProcesses:
    """Decodes a few files at a time; belongs to the event loop."""

    def __init__(self, threads: TextThreads, *, max_file_bytes: int) -> None:
        """Start nothing yet.

        Args:
            threads: where the answers of the processes are waited for.
            max_file_bytes: the largest audio file.
        """
        self._sounds = _Processes(
            threads,
            failure=AudioTooLaborious,
            memory_bytes=BASE_BYTES + COPIES * max_file_bytes + 2 * MAX_SOUND_BYTES,
            processor_s=AUDIO_PROCESSOR_S,
            max_answer_bytes=MAX_SOUND_BYTES,
        )
        self._images = _Processes(
            threads,
            failure=ImageTooLaborious,
            memory_bytes=BASE_BYTES
            + COPIES * MAX_IMAGE_BYTES
            + IMAGE_COPIES * PIXEL_BYTES * MAX_PIXELS
            + 2 * MAX_PICTURES_BYTES,
            processor_s=IMAGE_PROCESSOR_S,
            max_answer_bytes=MAX_PICTURES_BYTES,
        )
        self._pdfs = _Processes(
            threads,
            failure=PdfTooLaborious,
            memory_bytes=BASE_BYTES + COPIES * MAX_PDF_BYTES + PDF_OBJECTS_BYTES,
            processor_s=PDF_PROCESSOR_S,
            max_answer_bytes=MAX_PDF_ANSWER_BYTES,
        )
        self._sizes = LruCache[Size](MAX_CACHED_SIZES)
        self._pictures = LruCache[list[Picture]](MAX_CACHED_BYTES, _num_bytes)

    async def sound(
        self,
        content: bytes,
        max_s: float = MAX_AUDIO_S,
        *,
        activity: VoiceActivity | None = None,
        client: WorkOwner = ANYONE,
    ) -> Sound:
        """Return the samples of an audio file, and with `activity` where somebody speaks.

        Raises:
            UnreadableAudio: it is no sound of a supported format.
            AudioTooLong: it plays longer than `max_s` seconds.
            AudioTooLaborious: it takes too much time or memory.
        """
        return await self._sounds.call(client, read_sound, decode_audio, content, max_s, activity)

    async def image_size(self, content: bytes, *, key: bytes, param: str, client: WorkOwner = ANYONE) -> Size:
        """Return the size of an image from its header.

        Args:
            content: the file.
            key: stands for the file in the cache.
            param: the request field that an error names.
            client: whose image it is.

        Raises:
            UnreadableImage: it is no image of a supported format.
            ImageTooLarge: it has too many pixels.
            ImageTooLaborious: it takes too much time or memory.
        """
        if (size := self._sizes.get(key)) is None:
            size = await self._images.call(client, read_size, image_size, content, param)
            self._sizes.put(key, size)
        return size

    async def pictures(
        self,
        content: bytes,
        resizes: Sequence[Resize],
        resampling: Filter,
        *,
        key: bytes,
        param: str,
        client: WorkOwner = ANYONE,
    ) -> list[Picture]:
        """Return an image in the sizes that are wanted, each made of the one before; raises as `image_size`."""
        # What the process holds at the same time, which its memory is for.
        assert CHANNELS * sum(size.width * size.height for size, _ in resizes) <= MAX_PICTURES_BYTES
        resizes = tuple(resizes)
        wanted = (key, resizes, resampling)
        if (pictures := self._pictures.get(wanted)) is None:
            read = partial(read_pictures, resizes=resizes)
            pictures = await self._images.call(client, read, decode_image, content, resizes, resampling, param)
            self._pictures.put(wanted, pictures)
        return pictures

    async def pdf_text(self, content: bytes, *, client: WorkOwner = ANYONE) -> PdfText:
        """Return the text of a PDF, which is a client's.

        Raises:
            UnreadablePdf: it is no PDF, or has no text that can be read.
            PdfTooLaborious: it takes too much time or memory.
        """
        return await self._pdfs.call(client, read_pdf_text, pdf_text, content)

    def end(self) -> None:
        """End the processes that decode nothing."""
        self._sounds.end()
        self._images.end()
        self._pdfs.end()


def _num_bytes(pictures: Sequence[Picture]) -> int:
    return ENTRY_BYTES + sum(picture.nbytes for picture in pictures)


class _Processes:
    """The processes for one kind of media."""

    def __init__(
        self,
        threads: TextThreads,
        *,
        failure: Callable[[str], ServiceError],
        memory_bytes: int,
        processor_s: float,
        max_answer_bytes: int,
    ) -> None:
        self._threads, self._failure = threads, failure
        self._new_process = partial(
            WorkerProcess,
            failure=failure,
            memory_bytes=memory_bytes,
            processor_s=processor_s,
            max_answer_bytes=max_answer_bytes,
        )
        self._turns = Turns(MAX_PROCESSES)
        self._free: list[WorkerProcess] = []
        self._idle: asyncio.TimerHandle | None = None

    async def call[T](
        self,
        client: WorkOwner,
        read: Callable[[bytearray], T],
        function: Callable[..., bytes | bytearray],
        *arguments: Any,
    ) -> T:
        """Return what `read` makes of the answer of a function; a ValueError of its ends the process."""
        turn = await self._turns.take(client)
        try:
            process, has_ended = self._free.pop() if self._free else self._new_process(), False

            def decode() -> T:
                answer = process.call(function, *arguments)
                try:
                    return read(answer.content)
                except ValueError as error:
                    process.end()
                    raise self._failure("crashed") from error

            try:
                return await self._threads.run(decode, is_long=True, turns=Turns(1))
            except asyncio.CancelledError:
                has_ended = True
                process.end()
                raise
            finally:
                if not has_ended:
                    self._free.append(process)
                self._end_later()
        finally:
            self._turns.give_back(turn)

    def end(self) -> None:
        """End the processes that decode nothing."""
        while self._free:
            self._free.pop().end()

    def _end_later(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.end)
