"""A service that sees, under 2,000 requests of which a third is cut off: nothing is lost, and nothing answers 5xx."""

import httpx
import pytest

from tests.contract.abuse import check_nothing_is_lost, cut_off_in_upload, cut_off_of
from tests.media.image_files import drawing, image_file
from tests.process import running_service
from tests.sighted import QWEN_SPECIAL, data_url, save_qwen, shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.anyio]

PATH = "/v1/chat/completions"
NUM_REQUESTS = 2000
IMAGES = [image_file(kind, drawing(30 + 9 * number, 40)) for number, kind in enumerate(["PNG", "JPEG", "WEBP", "GIF"])]
LARGE = image_file("PNG", drawing(190, 190).effect_spread(90), compress_level=0)
NO_IMAGES = [b"", b"text", b"GIF89a", b"<svg/>", IMAGES[0][:30]]
SETTINGS = {"model_name": "m", "max_num_seqs": 4, "max_prefill_tokens": 64, "max_image_tokens": 40}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder, cache = tmp_path_factory.mktemp("qwen") / "model", tmp_path_factory.mktemp("cache")
    save_qwen(folder)
    with running_service(model_uri=folder, local_model_cache=cache, **SETTINGS) as running:
        yield running


def body(*contents, text="What is it?", **fields):
    return {"model": "m", "messages": shown(*map(data_url, contents), text=text), "max_tokens": 4} | fields


async def whole(client, chance):
    images = chance.choices([*IMAGES, LARGE], weights=[4, 4, 4, 4, 1], k=chance.randrange(3))
    fields = chance.choice([{}, {"stream": True}, {"n": 2}, {"temperature": 0}])
    answer = await client.post(PATH, json=body(*images, **fields))
    assert answer.status_code == 200, answer.text


async def refused(client, chance):
    wrong = chance.choice(
        [
            body(*[IMAGES[0]] * 30),
            body(IMAGES[0], text=QWEN_SPECIAL[0]),
            body(IMAGES[0], model="other"),
            body(chance.choice(NO_IMAGES)),
            {"model": "m", "messages": shown("http://169.254.169.254/")},
        ]
    )
    answer = await client.post(PATH, json=wrong)
    assert answer.status_code in (400, 404), answer.text


async def mutated(client, chance):
    content = bytearray(chance.choice(IMAGES))
    for _ in range(chance.randrange(1, 40)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    answer = await client.post(PATH, json=body(bytes(content)))
    assert answer.status_code in (200, 400, 413), answer.text


async def test_nothing_is_lost(service):
    cut_off = cut_off_of(whole)
    in_upload = cut_off_in_upload(PATH, "application/json", b'{"messages": "' + b"a" * 9999)
    kinds = [whole] * 3 + [refused, mutated] + [cut_off, cut_off, in_upload]

    async def warm_up(client: httpx.AsyncClient) -> str:
        for content in (*IMAGES, LARGE):
            (await client.post(PATH, json=body(content))).raise_for_status()
        answer = await client.post(PATH, json=body(*IMAGES[:2], temperature=0))
        return answer.json()["choices"][0]["message"]["content"]

    await check_nothing_is_lost(service, PATH, kinds, num_requests=NUM_REQUESTS, seed=38, warm_up=warm_up)
