"""Audio files of clients, decoded in worker processes of their own, each killed with the request that it works for."""

import asyncio
from functools import cache
from importlib.util import find_spec

import anyio

from service.api.work.text_threads import TextThreads
from service.errors import AudioTooLaborious
from service.media.decode import decode_audio
from service.media.samples import HEADER, SAMPLE_BYTES, SAMPLING_RATE, SPAN_BYTES, Sound, read_sound
from service.media.voice_activity import STEP_SIZE, VoiceActivity
from service.worker.process import MEBIBYTE, WorkerProcess

MAX_PROCESSES = 2  # at the same time; each may take a processor
MAX_AUDIO_S = 7200.0
PROCESSOR_S = 60.0  # for one file
BASE_BYTES = 384 * MEBIBYTE  # of memory: the interpreter, FFmpeg and its buffers
COPIES = 3  # of a file in memory: as it came, unpickled, and read
IDLE_S = 60.0  # until a process without calls is ended
MAX_SAMPLES = SAMPLING_RATE * (int(MAX_AUDIO_S) + 1)
MAX_SOUND_BYTES = HEADER.size + SAMPLE_BYTES * MAX_SAMPLES + SPAN_BYTES * (MAX_SAMPLES // STEP_SIZE)


class MediaProcesses:
    """Decodes a few files at a time; belongs to the event loop."""

    def __init__(self, threads: TextThreads, *, max_file_bytes: int) -> None:
        """Start nothing yet.

        Args:
            threads: where the answers of the processes are waited for.
            max_file_bytes: the largest file.
        """
        self._threads, self._max_file_bytes = threads, max_file_bytes
        self._turns = anyio.CapacityLimiter(MAX_PROCESSES)
        self._free: list[WorkerProcess] = []
        self._idle: asyncio.TimerHandle | None = None

    async def sound(
        self, content: bytes, max_s: float = MAX_AUDIO_S, *, activity: VoiceActivity | None = None
    ) -> Sound:
        """Return the samples of an audio file, and with `activity` where somebody speaks.

        Raises:
            UnreadableAudio: it is no sound of a supported format.
            AudioTooLong: it plays longer than `max_s` seconds.
            AudioTooLaborious: it takes too much time or memory.
        """
        async with self._turns:
            process, has_ended = self._free.pop() if self._free else self._new_process(), False

            def decode() -> Sound:
                answer = process.call(decode_audio, content, max_s, activity)
                try:
                    return read_sound(answer.content)
                except ValueError as error:
                    process.end()
                    raise AudioTooLaborious("crashed") from error

            try:
                sound = await self._threads.run(decode, is_long=True, limiter=anyio.CapacityLimiter(1))
            except asyncio.CancelledError:
                has_ended = True
                process.end()
                raise
            finally:
                if not has_ended:
                    self._free.append(process)
                self._end_later()
        return sound

    def end(self) -> None:
        """End the processes that decode nothing."""
        while self._free:
            self._free.pop().end()

    def _new_process(self) -> WorkerProcess:
        return WorkerProcess(
            failure=AudioTooLaborious,
            memory_bytes=BASE_BYTES + COPIES * self._max_file_bytes + 2 * MAX_SOUND_BYTES,
            processor_s=PROCESSOR_S,
            max_answer_bytes=MAX_SOUND_BYTES,
        )

    def _end_later(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.end)


@cache
def can_decode() -> bool:
    """Return whether the packages of the extra `media` are installed."""
    return find_spec("av") is not None
