"""Worker processes that decode media: they are reused, and killed with their request."""

import asyncio

import numpy as np
import pytest

from service.api.work.media import MediaProcesses
from service.api.work.text_threads import TextThreads
from service.errors import UnreadableAudio, UnreadableImage
from service.media.pixels import Filter, Resize, Size
from tests.media.audio_files import audio_file, tone
from tests.media.image_files import SIZE, image_file
from tests.processes import is_running


def long_sound():
    return audio_file("flac", np.random.default_rng(0).integers(-9000, 9000, 16000 * 600).astype(np.int16))


@pytest.fixture
def processes():
    return MediaProcesses(TextThreads(), max_file_bytes=25 * 2**20)


def worker_ids():
    import psutil

    return {child.pid for child in psutil.Process().children() if "service.worker.process" in child.cmdline()}


def test_a_process_is_used_again(processes):
    async def decode_two():
        before = worker_ids()
        for seconds in (1, 2):
            assert len((await processes.sound(audio_file("wav", tone(seconds)))).samples) == 16000 * seconds
        assert len(worker_ids() - before) == 1
        processes.end()
        assert worker_ids() <= before

    asyncio.run(decode_two())


def test_a_refused_file_leaves_the_process_to_the_next(processes):
    async def decode_two():
        with pytest.raises(UnreadableAudio):
            await processes.sound(b"text")
        assert len((await processes.sound(audio_file("wav", tone(1)))).samples) == 16000
        processes.end()

    asyncio.run(decode_two())


def test_a_process_is_killed_with_its_request(processes):
    sound = long_sound()

    async def leave():
        before = worker_ids()
        decoding = asyncio.ensure_future(processes.sound(sound))
        while not (started := worker_ids() - before):
            await asyncio.sleep(0.01)
        decoding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await decoding
        assert not any(is_running(pid) for pid in started)
        assert len((await processes.sound(audio_file("wav", tone(1)))).samples) == 16000
        processes.end()

    asyncio.run(leave())


def test_images_have_a_process_of_their_own(processes):
    async def decode_all():
        before = worker_ids()
        content = image_file("PNG")
        assert await processes.image_size(content, key=b"a", param="image") == SIZE
        with pytest.raises(UnreadableImage, match="'image'"):
            await processes.image_size(b"text", key=b"b", param="image")
        [picture] = await processes.pictures(content, [Resize(Size(6, 4))], Filter.BICUBIC, key=b"a", param="image")
        assert picture.shape == (4, 6, 3)
        assert len(worker_ids() - before) == 1
        await processes.sound(audio_file("wav", tone(1)))
        assert len(worker_ids() - before) == 2
        processes.end()

    asyncio.run(decode_all())


def test_an_image_that_comes_again_is_not_decoded_again(processes):
    async def decode_twice():
        before, content, resizes = worker_ids(), image_file("PNG"), [Resize(Size(6, 4))]

        async def see(key, resizes=resizes, content=content):
            await processes.image_size(content, key=key, param="image")
            return await processes.pictures(content, resizes, Filter.BICUBIC, key=key, param="image")

        [first] = await see(b"a")
        processes.end()
        [again] = await see(b"a")
        assert worker_ids() <= before
        assert np.array_equal(again, first)
        with pytest.raises(ValueError, match="read-only"):
            again[0] = 0
        assert [picture.shape for picture in await see(b"a", [Resize(Size(3, 2))])] == [(2, 3, 3)]
        processes.end()
        with pytest.raises(UnreadableImage):
            await see(b"b", content=b"text")
        processes.end()

    asyncio.run(decode_twice())
