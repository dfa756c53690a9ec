"""`levserve compare`: metrics of how much two configurations of a checkpoint differ on a text."""

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

MIN_TOKENS = 2  # the second one is the first that is predicted


def compare(variants: Sequence[str], text: Path, flags: Mapping[str, Any], config: Path | None) -> int:
    """Print perplexity, KL divergence, agreement and largest logit difference of two variants; return the exit code.

    Args:
        variants: settings of each variant as `NAME=value`, separated by spaces, on top of the common ones.
        text: the file with the text, in UTF-8.
        flags: common settings.
        config: a YAML file of common settings.

    Raises:
        SettingsError: a setting or the text is malformed, or the tokenizers differ.
        StartError: a model cannot be loaded.
    """
    content = _read(text)
    parsed = [parse_variant(variant) for variant in variants]
    settings = [load_settings({**flags, **own}, config, typed={name: name.upper() for name in own}) for own in parsed]
    first, second = (Scorer.of(each) for each in settings)
    token_ids, other_ids = (each.tokenizer.encode(content, add_special_tokens=True) for each in (first, second))
    if token_ids != other_ids or first.vocab_size != second.vocab_size:
        raise UnsupportedModel(second.uri, "it tokenizes the text differently from the first model.")
    if len(token_ids) < MIN_TOKENS:
        raise SettingsError("--text", f"{text} has {len(token_ids)} tokens; at least {MIN_TOKENS} are needed.")
    difference, window = Difference(), min(first.max_tokens, second.max_tokens)
    for start in range(0, len(token_ids) - 1, window - 1):  # windows overlap by one token
        tokens = token_ids[start : start + window]
        targets = tokens[1:]
        for ours, theirs in zip(first.logits(tokens), second.logits(tokens), strict=True):
            next_tokens, targets = targets[: len(ours)], targets[len(ours) :]
            difference.add(ours[: len(next_tokens)], theirs[: len(next_tokens)], next_tokens)
    _print({"first": variants[0], "second": variants[1], **difference.metrics()})
    return 0


def parse_variant(variant: str) -> dict[str, str]:
    """Parse the settings of a variant, such as `QUANTIZATION=int8 DTYPE=bfloat16`, by field name.

    Raises:
        SettingsError: a word has no `=`.
    """
    words = shlex.split(variant)
    for word in words:
        if "=" not in word:
            raise SettingsError("compare", f"{word!r} is not a setting with a value, such as QUANTIZATION=int8.")
    return {name.lower(): value for name, _, value in (word.partition("=") for word in words)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("--text", f"{path} cannot be read as UTF-8: {error}") from error


def _print(metrics: Mapping[str, object]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write("".join(f"{name:>28}: {value}\n" for name, value in metrics.items()))
    else:
        sys.stdout.write(json.dumps(metrics) + "\n")
    sys.stdout.flush()
