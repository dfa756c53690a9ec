"""The bytes that each token stands for, where a tokenizer's decoder works token by token.

Two families do, and nearly every language model is of one: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with
byte fallback (Llama 2, Mistral, Gemma). Knowing the bytes tells an incomplete character from a real U+FFFD.
Source: https://github.com/huggingface/tokenizers/tree/main/tokenizers/src/decoders (byte_level.rs, byte_fallback.rs)
"""

import json
import re
from collections.abc import Callable
from typing import Any

import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Token id to bytes, remembered; a special or unknown id stands for no bytes."""

    def __init__(
        self, backend: tokenizers.Tokenizer, to_bytes: Callable[[str], bytes], num_leading_spaces_stripped: int
    ) -> None:
        self.num_leading_spaces_stripped = num_leading_spaces_stripped  # at the very start of a text
        self._backend = backend
        self._to_bytes = to_bytes
        self._known: dict[int, bytes] = dict.fromkeys(special_ids(backend), b"")

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "TokenBytes | None":
        """Return the table of a tokenizer, or None if its decoder is of neither family."""
        steps = decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(backend, _from_byte_alphabet, 0)
        strip = steps.pop() if kinds[-1:] == ["Strip"] else {"content": " ", "start": 0, "stop": 0}
        replacements = _replacements(steps[:-2])
        has_known_tail = [step["type"] for step in steps[-2:]] == ["ByteFallback", "Fuse"]
        if not has_known_tail or replacements is None or strip["content"] != " " or strip["stop"] != 0:
            return None
        return cls(backend, lambda token: _from_byte_fallback(token, replacements), strip["start"])

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of one token."""
        known = self._known.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._to_bytes(token)
        return known


def special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids that stand for no text, such as the end of a turn."""
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


def decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """Return the decoder as tokenizer.json describes it, a sequence flattened; empty if there is none."""
    if backend.decoder is None:
        return []
    description = json.loads(backend.decoder.__getstate__())
    return list(description["decoders"]) if description["type"] == "Sequence" else [description]


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]] | None:
    """Return what a run of Replace steps does; None if it is more than plain strings."""
    if any(step["type"] != "Replace" or "String" not in step["pattern"] for step in steps):
        return None
    return [(step["pattern"]["String"], step["content"]) for step in steps]


def _from_byte_fallback(token: str, replacements: list[tuple[str, str]]) -> bytes:
    for old, new in replacements:
        token = token.replace(old, new)
    match = BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the printable character that stands for each byte.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()


def _from_byte_alphabet(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # an added token is written as itself
        return token.encode()
