"""A service that hears, under 2,000 requests of which a third is cut off: nothing is lost, and nothing answers 5xx."""

import pytest

from tests.contract.abuse import check_nothing_is_lost, cut_off_in_upload, cut_off_of
from tests.contract.random_whisper import write_random_whisper
from tests.media.audio_files import ENCODERS, audio_file, tone, video
from tests.process import running_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.anyio]

MODEL = "random-whisper"
NUM_REQUESTS = 2000
PATH = "/v1/audio/transcriptions"
RECORDINGS = [audio_file(kind, tone(1 + number)) for number, kind in enumerate(ENCODERS)]
NO_RECORDINGS = [b"", b"text", b"\x89PNG\r\n\x1a\n" + bytes(64), video(), RECORDINGS[0][:30]]
# At temperature 1 the ladder has one step.
FIELDS = {"model": MODEL, "temperature": "1", "seed": "7"}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder, cache = tmp_path_factory.mktemp("whisper"), tmp_path_factory.mktemp("cache")
    write_random_whisper(folder)
    with running_service(model_uri=folder, model_name=MODEL, local_model_cache=cache, max_num_seqs=8) as running:
        yield running


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


async def test_nothing_is_lost(service):
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(9999)
    in_upload = cut_off_in_upload(PATH, "multipart/form-data; boundary=x", part)
    cut_off = cut_off_of(whole)
    kinds = [whole] * 3 + [refused, mutated] + [cut_off, cut_off, in_upload]

    async def warm_up(client):
        for content in RECORDINGS:
            await client.post(PATH, data=FIELDS, files={"file": ("a", content)})
        return (await client.post(PATH, data=FIELDS, files={"file": ("a", RECORDINGS[0])})).json()["text"]

    await check_nothing_is_lost(service, PATH, kinds, num_requests=NUM_REQUESTS, seed=37, warm_up=warm_up)
