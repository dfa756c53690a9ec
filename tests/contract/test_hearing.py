"""A Whisper of random weights behind OpenAI's client: every kind of request, alone and at once, and a warm start."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import BadRequestError

from tests.api.hearing.scripted_speech import SPEECH
from tests.contract.random_whisper import write_random_whisper
from tests.media.audio_files import audio_file, tone
from tests.process import running_service

pytestmark = pytest.mark.slow

MODEL = "random-whisper"
LONG = audio_file("flac", tone(40))
SEED = {"seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("whisper")
    write_random_whisper(written)
    return written


@pytest.fixture(scope="module")
def settings(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return {"model_uri": folder, "model_name": MODEL, "local_model_cache": cache, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def service(settings):
    with running_service(**settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(service):
    return service.client()


def heard(client, content=SPEECH, *, response_format="verbose_json", extra=SEED, **fields):
    audio = client.audio.transcriptions
    return audio.create(
        model=MODEL, file=("a.flac", content), response_format=response_format, extra_body=extra, **fields
    )


def value_of(service, name):
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_recording_is_heard_by_all_the_rules(client):
    answer = heard(client)
    assert answer.segments
    assert answer.text == "".join(segment.text for segment in answer.segments).strip()
    times = [(segment.start, segment.end) for segment in answer.segments]
    assert all(0 <= start < end for start, end in times)
    assert all(segment.avg_logprob < 0 and 0 <= segment.no_speech_prob <= 1 for segment in answer.segments)


def test_the_same_seed_hears_the_same_alone_and_among_others(client):
    alone = [heard(client, content).text for content in (SPEECH, LONG)]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(lambda content: heard(client, content).text, (SPEECH, LONG) * 3))
    assert together == alone * 3


def test_a_stream_says_what_the_answer_says(client):
    events = list(heard(client, response_format="json", stream=True))
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == heard(client).text


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # a field of its answers
def test_a_window_is_encoded_once_whatever_is_asked_of_it(service, client):
    content = audio_file("flac", tone(3, hertz=777))
    before = value_of(service, 'levserve_engine_steps_total{kind="encode"')
    heard(client, content, temperature=1)
    once = value_of(service, 'levserve_engine_steps_total{kind="encode"') - before
    heard(client, content, language="de", temperature=1)
    client.audio.translations.create(model=MODEL, file=("a.flac", content), temperature=1)
    assert once > 0
    first_windows = value_of(service, 'levserve_engine_steps_total{kind="encode"') - before
    assert first_windows < 3 * once


def test_speech_alone_and_parts_are_heard(client):
    assert heard(client, extra={**SEED, "vad_filter": True}).segments
    assert heard(client, chunking_strategy="auto").segments
    assert heard(client, audio_file("flac", tone(2)), extra={"vad_filter": True}).text == ""


def test_a_model_that_hears_takes_no_chat(client):
    with pytest.raises(BadRequestError, match="audio/transcriptions"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])


def test_a_warm_start_compiles_nothing_up_to_the_last_kind_of_request(service, settings):
    expected = heard(service.client()).text
    with running_service(**settings) as warm:
        client = warm.client()
        assert heard(client).text == expected
        heard(client, LONG, chunking_strategy="auto", temperature=0.4)
        list(heard(client, response_format="json", stream=True))
        assert value_of(warm, "levserve_xla_compiles_total") == 0
