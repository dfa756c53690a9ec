"""The real weights of Whisper tiny.en hear what openai-whisper hears with them, in hundreds of spoken clips.

They need the weights (LEVSERVE_TINY_EN_WHEEL names their package) and espeak-ng in the version of the references.
"""

import gzip
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.hear.spoken import wave_file
from examples.hear.tiny_en import VARIABLE, write_checkpoint
from tests.contract.spoken_clips import sounds
from tests.process import running_service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no package of weights"),
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"),
]

MODEL = "tiny.en"
REFERENCES = Path(__file__).with_name("hearing_references.json.gz")
MAX_WORD_ERRORS = 0.005  # more than those of openai-whisper, of all words
MIN_EQUAL_WINDOWS = 0.95
CLIENTS = 8


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("weights") / "tiny.en")
    with running_service(model_uri=checkpoint, model_name=MODEL, dtype="float32") as running:
        yield running


@pytest.fixture(scope="module")
def clips():
    references = json.loads(gzip.decompress(REFERENCES.read_bytes()))
    found = [sound for sound in sounds() if references[sound.name]["digest"] == sound.digest]
    if len(found) < len(references):
        pytest.skip(f"espeak-ng speaks {len(references) - len(found)} clips otherwise than that of the references")
    return [(sound, references[sound.name]) for sound in found]


@pytest.fixture(scope="module")
def spoken(service, clips):
    """What is heard in the clips with speech, beside their references."""
    return heard_in(service, [clip for clip in clips if clip[0].text])


def heard_in(service, clips, **fields):
    client = service.client()

    def hear(clip):
        sound, reference = clip
        content = wave_file(sound.samples)
        return sound, reference, client.audio.transcriptions.create(
            model=MODEL, file=("a.wav", content), response_format="verbose_json", extra_body={"seed": 0, **fields}
        )  # fmt: skip

    with ThreadPoolExecutor(CLIENTS) as threads:
        return list(threads.map(hear, clips))


def words(text):
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter.isspace() or letter == "'").split()


def num_word_errors(text, expected):
    """Return the least number of words that are inserted, deleted or replaced."""
    said, before = words(text), list(range(len(words(text)) + 1))
    for row, word in enumerate(words(expected), start=1):
        after = [row]
        for column, other in enumerate(said):
            after.append(min(before[column] + (word != other), before[column + 1] + 1, after[column] + 1))
        before = after
    return before[-1]


@pytest.mark.parametrize("kind", ["clean", "noisy", "long"])
def test_as_many_words_are_wrong_as_openai_whisper_has_wrong(spoken, kind):
    clips = [clip for clip in spoken if clip[0].name.startswith(kind)]
    num_words = sum(len(words(sound.text)) for sound, _, _ in clips)
    ours = sum(num_word_errors(answer.text, sound.text) for sound, _, answer in clips)
    theirs = sum(num_word_errors(reference["text"], sound.text) for sound, reference, _ in clips)
    apart = sum(num_word_errors(answer.text, reference["text"]) for _, reference, answer in clips)
    print(f"{kind}: {num_words} words, wrong {ours} of ours, {theirs} of openai's, {apart} differ")
    assert ours - theirs <= MAX_WORD_ERRORS * num_words


def test_windows_have_the_tokens_of_openai_whisper(spoken):
    num_windows, num_equal, different = 0, 0, []
    for sound, reference, answer in spoken:
        ours = {}
        for segment in answer.segments:
            ours.setdefault(segment.seek, []).extend(segment.tokens)
        expected = {seek: tokens for seek, tokens in reference["windows"] if tokens}
        num_windows += len(expected)
        equal = sum(ours.get(seek) == tokens for seek, tokens in expected.items())
        num_equal += equal
        if equal < len(expected):
            different.append(sound.name)
    print(f"{num_equal} of {num_windows} windows are equal; others are in {different}")
    assert num_equal >= MIN_EQUAL_WINDOWS * num_windows


def test_no_words_are_invented_with_the_filter(service, clips):
    wordless = [clip for clip in clips if not clip[0].text]
    filtered = heard_in(service, wordless, vad_filter=True)
    assert {sound.name: answer.text for sound, _, answer in filtered if answer.text} == {}


def test_without_the_filter_the_likeliest_words_are_those_that_openai_whisper_invents(service, clips):
    """What is sampled at higher temperatures is by chance: it is counted, and not compared."""
    invented, theirs = {}, {}
    for sound, reference, answer in heard_in(service, [clip for clip in clips if not clip[0].text]):
        is_sampled = reference["hottest"] > 0 or any(segment.temperature for segment in answer.segments)
        invented[sound.name], theirs[sound.name] = (
            (is_sampled, words(text)) for text in (answer.text, reference["text"])
        )
    for is_sampled in (False, True):
        counts = [
            sum(len(said) for chance, said in each.values() if chance is is_sampled) for each in (invented, theirs)
        ]
        print(f"{'sampled' if is_sampled else 'likeliest'} words invented: {counts[0]}, by openai-whisper {counts[1]}")
    print({name: said for name, said in invented.items() if said[1]})
    assert {name: said for name, said in invented.items() if not said[0]} == {
        name: said for name, said in theirs.items() if not said[0]
    }
