"""A service that hears, under 2,000 requests of which a third is cut off: nothing is lost, and nothing answers 5xx."""

import asyncio
import random
import time

import httpx
import psutil
import pytest

from tests.contract.random_whisper import write_random_whisper
from tests.media.audio_files import ENCODERS, audio_file, tone, video
from tests.process import running_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.anyio]

MODEL = "random-whisper"
NUM_REQUESTS, CLIENTS = 2000, 12
PATH = "/v1/audio/transcriptions"
RECORDINGS = [audio_file(kind, tone(1 + number)) for number, kind in enumerate(ENCODERS)]
NO_RECORDINGS = [b"", b"text", b"\x89PNG\r\n\x1a\n" + bytes(64), video(), RECORDINGS[0][:30]]
# At temperature 1 the ladder has one step.
FIELDS = {"model": MODEL, "temperature": "1", "seed": "7"}
SETTLE_S = 60
MORE_FILES = 4  # of a second process that decodes


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder, cache = tmp_path_factory.mktemp("whisper"), tmp_path_factory.mktemp("cache")
    write_random_whisper(folder)
    with running_service(model_uri=folder, model_name=MODEL, local_model_cache=cache, max_num_seqs=8) as running:
        yield running


def gauges(service):
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    names = ("levserve_num_requests_running{", "levserve_num_requests_waiting{", "levserve_kv_cache_usage_perc{")
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)}


def held(service):
    process = psutil.Process(service.process.pid)
    return process.num_fds(), len(process.children(recursive=True))


async def settled(is_settled):
    """Wait until it is, or for a minute."""
    give_up_at = time.monotonic() + SETTLE_S
    while not is_settled() and time.monotonic() < give_up_at:
        await asyncio.sleep(0.2)


async def whole(client, chance):
    content = chance.choice(RECORDINGS)
    stream = {"stream": "true"} if chance.random() < 0.5 else {}
    answer = await client.post(PATH, data=FIELDS | stream, files={"file": ("a", content)})
    assert answer.status_code == 200, answer.text


async def refused(client, chance):
    wrong = chance.choice([{"language": "klingon"}, {"prompt": "fox " * 900}, {"n": "2"}, {"model": "other"}, {}])
    content = chance.choice(RECORDINGS if wrong else NO_RECORDINGS)
    answer = await client.post(PATH, data=FIELDS | wrong, files={"file": ("../" * 20, content)})
    assert answer.status_code in (400, 404), answer.text


async def mutated(client, chance):
    content = bytearray(chance.choice(RECORDINGS))
    for _ in range(chance.randrange(1, 40)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    answer = await client.post(PATH, data=FIELDS, files={"file": ("a", bytes(content))})
    assert answer.status_code in (200, 400), answer.text


async def cut_off(client, chance):
    """Leave while the recording is decoded or heard."""
    asking = asyncio.ensure_future(whole(client, chance))
    await asyncio.wait([asking], timeout=chance.random() ** 2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def cut_off_in_the_upload(client, chance):
    head = [
        f"POST {PATH} HTTP/1.1",
        "Host: x",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Length: 99999",
    ]
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(9999)
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write("\r\n".join([*head, "", ""]).encode() + part)
    await writer.drain()
    await asyncio.sleep(chance.random() / 20)
    writer.close()


async def test_nothing_is_lost(service):
    chance = random.Random(37)
    kinds = [whole] * 3 + [refused, mutated] + [cut_off, cut_off, cut_off_in_the_upload]
    todo = [chance.choice(kinds) for _ in range(NUM_REQUESTS)]
    async with httpx.AsyncClient(base_url=service.url, timeout=600) as client:
        for content in RECORDINGS:
            await client.post(PATH, data=FIELDS, files={"file": ("a", content)})
        expected = (await client.post(PATH, data=FIELDS, files={"file": ("a", RECORDINGS[0])})).json()["text"]
        before = held(service)

        async def work():
            while todo:
                await todo.pop()(client, random.Random(len(todo)))

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
        await settled(lambda: not any(gauges(service).values()))
        assert not any(gauges(service).values())
        assert (await client.post(PATH, data=FIELDS, files={"file": ("a", RECORDINGS[0])})).json()["text"] == expected
        statuses = {
            line.partition('status="')[2][:3]
            for line in (await client.get("/metrics")).text.splitlines()
            if line.startswith(f'levserve_http_responses_total{{route="{PATH}"')
        }
    assert not {status for status in statuses if status.startswith("5")}, statuses
    await settled(lambda: held(service)[0] <= before[0] + MORE_FILES)
    num_files, num_processes = held(service)
    assert num_files <= before[0] + MORE_FILES
    assert num_processes <= before[1] + 1
