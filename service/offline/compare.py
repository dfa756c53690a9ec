"""`levserve compare`: how much two ways to serve a checkpoint differ over a text, in a few figures."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.errors import SettingsError, UnsupportedModel
from service.offline.difference import Difference
from service.offline.scoring import Scorer
from service.settings.sources import load_settings

FEWEST_TOKENS = 2  # the second is the first that is predicted


def compare(ways: Sequence[str], text: Path, flags: Mapping[str, Any], config: Path | None) -> int:
    """Print perplexity, KL divergence, agreement and the largest logit difference of two ways; return the exit code.

    Args:
        ways: settings of each, as `NAME=value`, separated by spaces, on top of the others.
        text: the file with the text, in UTF-8.
        flags: settings of both.
        config: a YAML file of settings of both.

    Raises:
        SettingsError: a setting or the text is malformed, or the tokenizers of the two differ.
        StartError: a model cannot be loaded.
    """
    content = _read(text)
    settings = [load_settings({**flags, **parse_way(way)}, config) for way in ways]
    first, second = (Scorer.of(each) for each in settings)
    token_ids, other_ids = (each.tokenizer.encode(content, add_special_tokens=True) for each in (first, second))
    if token_ids != other_ids or first.vocab_size != second.vocab_size:
        raise UnsupportedModel(second.uri, "its tokens of the text are not those of the first model, nothing compares.")
    if len(token_ids) < FEWEST_TOKENS:
        raise SettingsError("--text", f"{text} has {len(token_ids)} tokens, and {FEWEST_TOKENS} are the fewest.")
    difference, window = Difference(), min(first.max_tokens, second.max_tokens)
    for start in range(0, len(token_ids) - 1, window - 1):  # the last token of a window begins the next one
        tokens = token_ids[start : start + window]
        targets = tokens[1:]
        for ours, theirs in zip(first.logits(tokens), second.logits(tokens), strict=True):
            next_tokens, targets = targets[: len(ours)], targets[len(ours) :]
            difference.add(ours[: len(next_tokens)], theirs[: len(next_tokens)], next_tokens)
    _print({"first": ways[0], "second": ways[1], **difference.figures()})
    return 0


def parse_way(way: str) -> dict[str, str]:
    """Return the settings of a way such as `QUANTIZATION=int8 DTYPE=bfloat16`, by field name.

    Raises:
        SettingsError: a word has no `=`.
    """
    words = shlex.split(way)
    for word in words:
        if "=" not in word:
            raise SettingsError("compare", f"{word!r} should be a setting and its value, such as QUANTIZATION=int8.")
    return {name.lower(): value for name, _, value in (word.partition("=") for word in words)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("--text", f"{path} cannot be read as UTF-8: {error}") from error


def _print(figures: Mapping[str, object]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{name:>28}: {value}\n" for name, value in figures.items()))
    else:
        sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
