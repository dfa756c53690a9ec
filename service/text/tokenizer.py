"""Strings to token ids and back, from the files beside a checkpoint's weights.

`tokenizer.json` alone decides which ids come out, its post-processor included, as in transformers 5 (so `add_bos_token`
of an older tokenizer_config.json changes nothing). The other files add the names of special tokens, what ends a text,
and how the model's author wants it sampled.
Source: https://huggingface.co/docs/transformers/main_classes/tokenizer, .../main_classes/text_generation
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from service.errors import ContextLengthExceeded, InvalidParameter, MalformedCheckpoint, MissingFile
from service.text.token_bytes import TokenBytes, special_ids

logger = logging.getLogger(__name__)

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
# What generation_config.json may ask for that the sampler does not do, with the values that ask for nothing.
UNSERVED_DEFAULTS: dict[str, tuple[Any, ...]] = {"num_beams": (None, 1), "typical_p": (None, 1)}

DEFAULT_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """How to sample when neither the request nor the operator says; None where the checkpoint does not say either."""

    temperature: float | None = None  # [0, 2]
    top_p: float | None = None  # (0, 1]
    top_k: int | None = None  # [-1, 2**31); 0 and -1 keep all tokens
    min_p: float | None = None  # [0, 1]
    repetition_penalty: float | None = None  # [0.01, 10]


class Tokenizer:
    """One checkpoint's tokenizer; safe to use from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: frozenset[int] = frozenset(),
        defaults: GenerationDefaults | None = None,
    ) -> None:
        # A file saved after training may cut every text at the training length.
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = dict(special_tokens or {})  # by transformers' name: {"bos_token": "<s>"}
        self.eos_ids = eos_ids
        self.defaults = defaults or GenerationDefaults()
        self.token_bytes = TokenBytes.of(backend)
        self.special_ids = special_ids(backend)
        self.backend = backend

    @classmethod
    def load(cls, folder: Path, uri: str | None = None) -> "Tokenizer":
        """Read a tokenizer from the folder of a checkpoint.

        Args:
            folder: where the files lie.
            uri: where they came from, for error messages.

        Raises:
            MissingFile: there is no tokenizer.json.
            MalformedCheckpoint: a file is not what its name says.
        """
        uri = uri or str(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise MissingFile(uri, _missing_tokenizer_message(folder))
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise MalformedCheckpoint(uri, path.name, f"is no tokenizer: {error}") from error
        special_tokens = _special_tokens(folder, uri)
        generation = read_json(folder, "generation_config.json", uri)
        model = read_json(folder, "config.json", uri)
        stated = generation.get("eos_token_id", model.get("eos_token_id"))
        named = backend.token_to_id(special_tokens.get("eos_token", ""))
        return cls(
            backend,
            special_tokens=special_tokens,
            eos_ids=_eos_ids(uri, stated) | ({named} if named is not None else set()),
            defaults=_generation_defaults(uri, generation),
        )

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows; a model may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(
        self, text: str, *, add_special_tokens: bool, param: str = "prompt", limit_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: what to encode.
            add_special_tokens: whether the tokenizer adds what it adds to a bare text, such as the beginning.
            param: the request field that a refusal names.
            limit_tokens: a text that cannot fit is refused unread, since encoding it may take seconds.

        Raises:
            InvalidParameter: the text has half of a surrogate pair, which is no character.
            ContextLengthExceeded: no encoding of so long a text has as few tokens as the limit.
        """
        if limit_tokens is not None and len(text) > limit_tokens:
            fewest_tokens = len(text) // self._longest_token_chars
            if fewest_tokens > limit_tokens:
                raise ContextLengthExceeded(
                    prompt_tokens=fewest_tokens, max_tokens=0, limit_tokens=limit_tokens, param=param, is_estimate=True
                )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(f"'{param}' has a lone surrogate, which is no character.", param=param) from None
        # `encode` keeps Python's lock, for seconds if the text is long; this lets other threads go on, and is faster.
        return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.backend.decode(list(token_ids), skip_special_tokens=True)

    def token_bytes_of(self, token_id: int) -> bytes:
        """Return what one token stands for by itself, which may be a part of a character; a special token's name."""
        name = self.backend.id_to_token(token_id)
        if name is None:  # a model may have more rows than its tokenizer has tokens
            return b""
        if token_id in self.special_ids:
            return name.encode()
        if self.token_bytes is not None:
            return self.token_bytes[token_id]
        return self.decode([token_id]).encode()

    @cached_property
    def _longest_token_chars(self) -> int:
        return max(1, max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1))


def read_json(folder: Path, name: str, uri: str) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file.

    Raises:
        MalformedCheckpoint: the file is not a JSON object.
    """
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(uri, name, "is not JSON") from error
    if not isinstance(content, dict):
        raise MalformedCheckpoint(uri, name, "is not a JSON object")
    return content


def _missing_tokenizer_message(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            "there is a SentencePiece tokenizer.model but no tokenizer.json. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH); or set TOKENIZER_URI to a place that has one."
        )
    return "there is no tokenizer.json. Put it beside the weights or set TOKENIZER_URI to a place that has one."


def _special_tokens(folder: Path, uri: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):  # the later one wins
        for name, value in read_json(folder, file, uri).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name in SPECIAL_TOKEN_NAMES and isinstance(text, str):
                found[name] = text
    return found


def _eos_ids(uri: str, stated: Any) -> frozenset[int]:
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise MalformedCheckpoint(uri, "generation_config.json", f"eos_token_id is {stated!r}, which is no token id")
    return frozenset(ids)


def _generation_defaults(uri: str, config: Mapping[str, Any]) -> GenerationDefaults:
    for name, neutral in UNSERVED_DEFAULTS.items():
        if config.get(name) not in neutral:
            logger.warning("generation_config.json asks for %s = %s, which is not applied", name, config[name])
    numbers = {name: _number_in_range(uri, config, name, *bounds) for name, bounds in DEFAULT_RANGES.items()}
    top_k = config.get("top_k")
    if top_k is not None and not (type(top_k) is int and -1 <= top_k < 2**31):
        raise _out_of_range(uri, "top_k", top_k)
    if config.get("do_sample") is False:
        # The other numbers change what is drawn, and nothing is.
        return GenerationDefaults(temperature=0.0, top_p=1.0, repetition_penalty=numbers["repetition_penalty"])
    return GenerationDefaults(**numbers, top_k=top_k)


def _number_in_range(uri: str, config: Mapping[str, Any], name: str, lowest: float, highest: float) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    if not (type(value) in (int, float) and lowest <= value <= highest):
        raise _out_of_range(uri, name, value)
    return float(value)


def _out_of_range(uri: str, name: str, value: Any) -> MalformedCheckpoint:
    return MalformedCheckpoint(uri, "generation_config.json", f"{name} is {value!r}, which is out of range")
