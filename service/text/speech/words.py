"""The times of words: the path through what the model attends to while it is given the text.

Source: https://github.com/openai/whisper/blob/v20250625/whisper/timing.py,
https://github.com/openai/whisper/blob/v20250625/whisper/tokenizer.py (split_to_word_tokens)
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from service.text.speech.model import SpeechModel
from service.text.speech.tokens import TIMESTAMP_S

POSITIONS_PER_S = round(1 / TIMESTAMP_S)
MEDIAN_WIDTH = 7  # positions
MAX_MEDIAN_S = 0.7  # of the durations of words
SENTENCE_ENDS = ".。!！?？"
PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"
# Their words have no spaces between them.
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

type Scores = Float[np.ndarray, "head prompt_token position"]
type Matrix = Float[np.ndarray, "token position"]


class Alignment(NamedTuple):
    """What a model attends to while it is given a transcript without timestamps: beginning, text and end."""

    scores: Scores  # of the heads that follow the sound, before their softmax


class Word(NamedTuple):
    """A word with the punctuation around it."""

    text: str  # with the space before it
    start: float  # seconds
    end: float


@dataclass(frozen=True)
class WordTimes:
    """The times of one segment, and of its words."""

    start: float
    end: float
    num_tokens: int  # of its text
    words: tuple[Word, ...] = ()


@dataclass
class AlignedWord:
    """A word with its times in the window, or a mark of punctuation that is not merged into its neighbour yet."""

    text: str
    num_tokens: int
    start: float
    end: float


def align_words(
    alignment: Alignment,
    model: SpeechModel,
    text_ids: Sequence[int],
    *,
    num_start_ids: int,
    num_positions: int,
    language: str | None,
) -> list[AlignedWord]:
    """Return the words of a text with their times in the window.

    Args:
        alignment: attention from the transcript's tokens to the positions of the window.
        model: whose tokens they are.
        text_ids: the text.
        num_start_ids: the tokens that begin the transcript, without the one for no timestamps.
        num_positions: those of the window with sound; the rest is silence.
        language: its code.
    """
    matrix = _attention(alignment.scores[:, :, :num_positions])[num_start_ids:-1]
    token_path, position_path = warp(-matrix)
    words = _split(model, [*text_ids, model.tokens.end], language)
    if len(words) <= 1:
        return []
    ends = np.cumsum([len(ids) for _, ids in words[:-1]]).tolist()
    begins = [0, *ends[:-1]]
    is_first = np.diff(token_path, prepend=-1).astype(bool)
    times = position_path[is_first] / POSITIONS_PER_S
    return [
        AlignedWord(text, len(ids), float(times[begin]), float(times[end]))
        for (text, ids), begin, end in zip(words[:-1], begins, ends, strict=True)
    ]


def with_words(
    segments: Sequence[WordTimes], timings: Sequence[AlignedWord], *, begin_s: float, last_speech_s: float
) -> list[WordTimes]:
    """Return segments with their words, and begins and ends that agree with these.

    Args:
        segments: of one window.
        timings: the words of all segments, with times in the window.
        begin_s: when the window begins in the recording.
        last_speech_s: when the last word before the window ended.
    """
    durations = np.array([timing.end - timing.start for timing in timings])
    durations = durations[durations.nonzero()]
    median_s = min(MAX_MEDIAN_S, float(np.median(durations))) if len(durations) else 0.0
    timings = [replace(timing) for timing in timings]
    if len(durations):
        _shorten_at_sentence_ends(timings, 2 * median_s)
    _merge_punctuation(timings)
    timed: list[WordTimes] = []
    remaining = iter(timings)
    for segment in segments:
        words = [
            Word(timing.text, round(begin_s + timing.start, 2), round(begin_s + timing.end, 2))
            for timing in _taken(remaining, segment.num_tokens)
            if timing.text
        ]
        timed.append(_agreed(segment, words, median_s, last_speech_s) if words else segment)
        if words:
            last_speech_s = timed[-1].end
    return timed


def _taken(timings: Iterator[AlignedWord], num_tokens: int) -> Iterator[AlignedWord]:
    """Yield the words of a number of tokens."""
    num_taken = 0
    while num_taken < num_tokens and (timing := next(timings, None)) is not None:
        yield timing
        num_taken += timing.num_tokens


def _attention(scores: Scores) -> Matrix:
    """Return how much each token attends to each position, compared to other tokens; the mean of the heads."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = (weights - weights.mean(axis=-2, keepdims=True)) / weights.std(axis=-2, keepdims=True)
    return _median_filtered(weights).mean(axis=0)


def _median_filtered(weights: Scores) -> Scores:
    beside = MEDIAN_WIDTH // 2
    if weights.shape[-1] <= beside:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (beside, beside)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, axis=-1)
    return np.partition(windows, beside, axis=-1)[..., beside]


def warp(costs: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return the cheapest path from the first token and position to the last, by dynamic time warping.

    Costs are summed along anti-diagonals, whose entries do not depend on each other.

    Returns:
        The token and the position of each step.
    """
    num_tokens, num_positions = costs.shape
    total = np.full((num_tokens + 1, num_positions + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.zeros(total.shape, np.int8)
    for diagonal in range(2, num_tokens + num_positions + 1):
        i = np.arange(max(1, diagonal - num_positions), min(num_tokens, diagonal - 1) + 1)
        j = diagonal - i
        both, token, position = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        is_both = (both < token) & (both < position)
        is_token = ~is_both & (token < both) & (token < position)
        came[i, j] = np.where(is_both, _BOTH, np.where(is_token, _TOKEN, _POSITION))
        total[i, j] = costs[i - 1, j - 1] + np.where(is_both, both, np.where(is_token, token, position))
    came[0, :], came[:, 0] = _POSITION, _TOKEN
    path: list[tuple[int, int]] = []
    i, j = num_tokens, num_positions
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = came[i, j]
        i, j = i - int(step != _POSITION), j - int(step != _TOKEN)
    tokens, positions = np.array(path[::-1]).reshape(-1, 2).T
    return tokens, positions


_BOTH, _TOKEN, _POSITION = range(3)  # which of them a step of the path advances


def _split(model: SpeechModel, token_ids: Sequence[int], language: str | None) -> list[tuple[str, list[int]]]:
    """Return the words of tokens, the end last."""
    parts = _characters(model, token_ids)
    if language in LANGUAGES_WITHOUT_SPACES:
        return parts
    words: list[tuple[str, list[int]]] = []
    for text, ids in parts:
        begins = ids[0] >= model.tokens.end or text.startswith(" ") or text.strip() in string.punctuation
        if begins or not words:
            words.append((text, ids))
        else:
            before, ids_before = words[-1]
            words[-1] = before + text, ids_before + ids
    return words


def _characters(model: SpeechModel, token_ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return the shortest runs of tokens that have whole characters."""
    whole = model.spelled(token_ids)
    parts: list[tuple[str, list[int]]] = []
    ids: list[int] = []
    num_chars = 0
    for token_id in token_ids:
        ids.append(token_id)
        text = model.spelled(ids)
        # A replacement character that the whole text has too will not become whole by more tokens.
        if "\ufffd" not in text or whole[num_chars + text.index("\ufffd")] == "\ufffd":
            parts.append((text, ids))
            num_chars += len(text)
            ids = []
    return parts


def _shorten_at_sentence_ends(timings: Sequence[AlignedWord], max_s: float) -> None:
    for before, timing in pairwise(timings):
        if timing.end - timing.start > max_s:
            if timing.text in SENTENCE_ENDS:
                timing.end = timing.start + max_s
            elif before.text in SENTENCE_ENDS:
                timing.start = timing.end - max_s


def _merge_punctuation(timings: Sequence[AlignedWord]) -> None:
    """Move punctuation into the word that it belongs to, and leave nothing in its place."""
    following = len(timings) - 1
    for i in range(len(timings) - 2, -1, -1):
        mark = timings[i]
        if mark.text.startswith(" ") and mark.text.strip() in PREPENDED:
            _merge(mark, timings[following], is_before=True)
        else:
            following = i
    before = 0
    for i in range(1, len(timings)):
        if not timings[before].text.endswith(" ") and timings[i].text in APPENDED:
            _merge(timings[i], timings[before], is_before=False)
        else:
            before = i


def _merge(mark: AlignedWord, word: AlignedWord, *, is_before: bool) -> None:
    word.text = mark.text + word.text if is_before else word.text + mark.text
    word.num_tokens += mark.num_tokens
    mark.text, mark.num_tokens = "", 0


def _agreed(segment: WordTimes, words: list[Word], median_s: float, last_speech_s: float) -> WordTimes:
    """Return a segment with its words, the first and last of which end at a pause."""
    max_s = 2 * median_s
    first = words[0]
    second_end = words[1].end if len(words) > 1 else first.start
    is_after_pause = first.end - last_speech_s > 4 * median_s
    if is_after_pause and (first.end - first.start > max_s or second_end - first.start > 2 * max_s):
        if len(words) > 1 and words[1].end - words[1].start > max_s:
            boundary = max(words[1].end / 2, words[1].end - max_s)
            words[0], words[1] = first._replace(end=boundary), words[1]._replace(start=boundary)
        words[0] = words[0]._replace(start=max(0, words[0].end - max_s))
    start, end = segment.start, segment.end
    if start < words[0].end and start - 0.5 > words[0].start:
        words[0] = words[0]._replace(start=max(0, min(words[0].end - median_s, start)))
    else:
        start = words[0].start
    if end > words[-1].start and end + 0.5 < words[-1].end:
        words[-1] = words[-1]._replace(end=max(words[-1].start + median_s, end))
    else:
        end = words[-1].end
    return replace(segment, start=start, end=end, words=tuple(words))
