"""The rule of a transcript allows what openai-whisper's decoding allows."""

import random

import numpy as np
import pytest

from service.engine.token_mask import WORD_BITS
from service.text.speech.rules import TranscriptRules
from service.text.speech.tokens import SpeechTokens, read_speech_tokens
from tests.text.speech.small_whisper import small_whisper

NUM_STATES = 10_000
MAX_INITIAL = 50  # timestamps of 20 ms


@pytest.fixture(scope="module")
def tokens() -> SpeechTokens:
    return read_speech_tokens("test", small_whisper(), {}, {})


def openai_allows(tokens: SpeechTokens, sampled: list[int], has_timestamps: bool) -> set[int]:
    """Follow the filters of openai-whisper's DecodingTask, a token at a time.

    Source: https://github.com/openai/whisper/blob/main/whisper/decoding.py
    """
    blocked = set(tokens.suppressed)
    begin, every = tokens.first_timestamp, range(tokens.vocab_size)
    if not sampled:
        blocked |= tokens.suppressed_first
    if has_timestamps:
        blocked.add(tokens.no_timestamps)
        last_was_timestamp = len(sampled) >= 1 and sampled[-1] >= begin
        penultimate_was_timestamp = len(sampled) < 2 or sampled[-2] >= begin
        if last_was_timestamp and penultimate_was_timestamp:
            blocked |= set(every[begin:])
        elif last_was_timestamp:
            blocked |= set(every[: tokens.end])
        timestamps = [token_id for token_id in sampled if token_id >= begin]
        if timestamps:
            is_pair_open = last_was_timestamp and not penultimate_was_timestamp
            blocked |= set(range(begin, timestamps[-1] if is_pair_open else timestamps[-1] + 1))
        if not sampled:
            blocked |= set(every[:begin]) | set(every[begin + MAX_INITIAL + 1 :])
    return set(every) - blocked


def allowed(rules: TranscriptRules, vocab_size: int) -> set[int]:
    words = np.full(-(-vocab_size // WORD_BITS), 0x5555_5555, np.uint32)
    rules.fill_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize("has_timestamps", [True, False])
def test_random_transcripts_are_allowed_what_openai_allows(tokens, has_timestamps):
    random_state, num_states = random.Random(4), 0
    while num_states < NUM_STATES // 2:
        rules, sampled = TranscriptRules(tokens, has_timestamps), []
        for _ in range(12):
            expected = openai_allows(tokens, sampled, has_timestamps)
            assert allowed(rules, tokens.vocab_size) == expected, sampled
            num_states += 1
            times = [token_id for token_id in expected if tokens.is_timestamp(token_id)]
            choice = times if times and random_state.random() < 0.5 else sorted(expected - {tokens.end})
            if not choice:
                break
            token_id = random_state.choice(choice[:20])
            rules.accept(token_id)
            sampled.append(token_id)


def test_a_transcript_may_begin_at_any_time_if_it_is_not_told_how_late(tokens):
    rules = TranscriptRules(tokens, has_timestamps=True, max_initial_s=None)
    assert allowed(rules, tokens.vocab_size) == set(range(tokens.first_timestamp, tokens.vocab_size))


def test_what_the_mask_held_before_and_ids_beyond_the_vocabulary_are_not_allowed(tokens):
    rules = TranscriptRules(tokens, has_timestamps=False)
    assert max(allowed(rules, tokens.vocab_size)) == tokens.vocab_size - 1
