"""Strings to token ids and back, and the bytes that each token stands for.

Nearly every language model has a decoder of one of two families that work token by token: byte-level BPE (GPT-2,
Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2, Mistral, Gemma). The bytes of their tokens distinguish an
incomplete character from a real U+FFFD.
Source: https://github.com/huggingface/tokenizers/tree/main/tokenizers/src/decoders (byte_level.rs, byte_fallback.rs)
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, override

import tokenizers

from service.errors import ContextLengthExceeded, InvalidParameter
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """One checkpoint's tokenizer; safe to use from several threads, and may be sent to another process."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: frozenset[int] = frozenset(),
        num_rows: int | None = None,
        defaults: GenerationDefaults = NO_DEFAULTS,
    ) -> None:
        """Take over a backend.

        Args:
            backend: the library's.
            special_tokens: by transformers' names.
            eos_ids: the tokens that end a text.
            num_rows: how many ids the model has, if that is known; texts with other tokens are refused.
            defaults: the author's.
        """
        # A file saved after training may cut every text at the training length. A backend that another model uses has
        # been changed already, and must not change while it encodes.
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        # The first call starts the library's threads, which keep the priority of the thread that makes it.
        backend.encode_batch_fast([""])
        self.special_tokens = dict(special_tokens or {})  # by transformers' name: {"bos_token": "<s>"}
        self.eos_ids = eos_ids
        self.num_rows = num_rows
        self.defaults = defaults
        self.token_bytes = TokenBytes.of(backend)
        self.special_ids = special_ids(backend)
        self.backend = backend

    @cached_property
    def packed(self) -> bytes:
        """What `tokenizer.json` says, compressed; the library holds the GIL while it writes it."""
        return zlib.compress(self.backend.to_str().encode(), level=1)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.packed, self.special_tokens, self.eos_ids, self.num_rows, self.defaults)

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids in the tokenizer, added tokens included; an embedding may have more rows."""
        # Asked for all, the library copies the whole vocabulary to count it. `str` of an added token is its content.
        added, model = set(map(str, self.backend.get_added_tokens_decoder().values())), self.backend.model
        num_added = sum(model.token_to_id(token) is None for token in added)
        return self.backend.get_vocab_size(with_added_tokens=False) + num_added

    def first_difference(self, other: "Tokenizer") -> str | None:
        """Return a token that is not the same of both: added tokens may be missing in one, and no others."""
        if self.backend is other.backend:
            return None
        own, others = self.backend.get_vocab(with_added_tokens=True), other.backend.get_vocab(with_added_tokens=True)
        added = {str(token) for each in (self, other) for token in each.backend.get_added_tokens_decoder().values()}
        # `str` of an added token is its content.
        missing = (token for token in own.keys() ^ others.keys() if token not in added)
        moved = (token for token, token_id in own.items() if others.get(token, token_id) != token_id)
        return next(chain(missing, moved), None)

    def encode(
        self, text: str, *, add_special_tokens: bool, param: str = "prompt", max_model_len: int | None = None
    ) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: what to encode.
            add_special_tokens: whether the tokenizer's post-processor adds its tokens, such as the begin token.
            param: the request field that an error names.
            max_model_len: a text too long for this many tokens is refused before it is encoded, which may take seconds.

        Raises:
            InvalidParameter: the text has a lone surrogate, which is not a character, or a token that the model lacks.
            ContextLengthExceeded: no encoding of so long a text has as few tokens as the limit.
        """
        if max_model_len is not None and len(text) > max_model_len:
            fewest_tokens = len(text) // self._longest_token_chars
            # Defends against T7.
            if fewest_tokens > max_model_len:
                raise ContextLengthExceeded(
                    prompt_tokens=fewest_tokens,
                    max_tokens=0,
                    max_model_len=max_model_len,
                    param=param,
                    is_estimate=True,
                )
        check_characters(text, param)
        # `encode` holds the GIL, for seconds if the text is long; `encode_batch_fast` releases it, and is faster.
        ids = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        self.check_ids(ids, param)
        return ids

    def encode_all(
        self, texts: Sequence[str], *, params: Sequence[str], max_tokens: int | None = None
    ) -> list[list[int]]:
        """Return the token ids of several texts, the post-processor's tokens included.

        Args:
            texts: what to encode.
            params: the request field of each text, which an error names.
            max_tokens: length to which longer texts are cut, with the post-processor's tokens; None for no cut.

        Raises:
            InvalidParameter: a text has a lone surrogate, which is not a character, or a token that the model lacks.
        """
        for text, param in zip(texts, params, strict=True):
            check_characters(text, param)
        encodings = self.backend.encode_batch_fast(list(texts))
        for encoding, param in zip(encodings, params, strict=True) if self._has_more_than_the_model else ():
            self.check_ids(encoding.ids, param)
        if max_tokens is None or all(len(encoding.ids) <= max_tokens for encoding in encodings):
            return [encoding.ids for encoding in encodings]
        room = max(0, max_tokens - self.backend.num_special_tokens_to_add(is_pair=False))
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        for encoding in encodings:
            encoding.truncate(room)
        return [self.backend.post_process(encoding).ids[:max_tokens] for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.backend.decode(list(token_ids), skip_special_tokens=True)

    def id_of(self, name: str) -> int | None:
        """Return the id of a token by its name; None if the tokenizer or the model lacks it."""
        found = self.backend.token_to_id(name)
        return None if found is None or (self.num_rows is not None and found >= self.num_rows) else found

    def token_bytes_of(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of one token, which may be part of a character; of a special token, its name."""
        name = self.backend.id_to_token(token_id)
        if name is None:  # an embedding may have more rows than its tokenizer has tokens
            return b""
        if token_id in self.special_ids:
            return name.encode()
        if self.token_bytes is not None:
            return self.token_bytes[token_id]
        return self.decode([token_id]).encode()

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check that the model has the tokens of a text; `param` is the request field that an error names.

        Raises:
            InvalidParameter: it has fewer tokens than its tokenizer, and lacks one of these.
        """
        if not self._has_more_than_the_model or not token_ids or (largest := max(token_ids)) < (self.num_rows or 0):
            return
        name = self.backend.id_to_token(largest)
        message = f"Invalid '{param}': its token {name!r} ({largest}) is none of the model's {self.num_rows} tokens."
        raise InvalidParameter(f"{message} Leave it out.", param=param)

    @cached_property
    def _has_more_than_the_model(self) -> bool:
        most = max(self.vocab_size, 1 + max(self.backend.get_added_tokens_decoder(), default=-1))
        return self.num_rows is not None and most > self.num_rows

    @cached_property
    def _longest_token_chars(self) -> int:
        return max(1, max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1))


def _unpacked(
    packed: bytes,
    special_tokens: Mapping[str, str],
    eos_ids: frozenset[int],
    num_rows: int | None,
    defaults: GenerationDefaults,
) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_buffer(zlib.decompress(packed))
    return Tokenizer(backend, special_tokens=special_tokens, eos_ids=eos_ids, num_rows=num_rows, defaults=defaults)


class TokenBytes:
    """A cached table from token id to bytes; a special or unknown id has none."""

    def __init__(
        self, backend: tokenizers.Tokenizer, to_bytes: Callable[[str], bytes], num_leading_spaces_stripped: int
    ) -> None:
        self.num_leading_spaces_stripped = num_leading_spaces_stripped  # at the start of a text
        self._backend = backend
        self._to_bytes = to_bytes
        self._known: dict[int, bytes] = dict.fromkeys(special_ids(backend), b"")

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "TokenBytes | None":
        """Return the table of a tokenizer, or None if its decoder is of neither family."""
        steps = _decoder_steps(backend)
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
    """Return the ids of control tokens, which have no text, such as the one that ends a message."""
    return frozenset(token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special)


def check_characters(text: str, param: str) -> None:
    """Check that a text can be encoded; `param` is the request field that an error names.

    Raises:
        InvalidParameter: it has a lone surrogate, which is not a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(f"'{param}' has a lone surrogate, which is not a character.", param=param) from None


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """Return the steps of a tokenizer's decoder, as tokenizer.json states them; empty if it has no decoder."""
    if backend.decoder is None:
        return []
    description = json.loads(backend.decoder.__getstate__())
    return list(description["decoders"]) if description["type"] == "Sequence" else [description]


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]] | None:
    """Return the (old, new) strings of Replace steps; None if there are other steps, or patterns."""
    if any(step["type"] != "Replace" or "String" not in step["pattern"] for step in steps):
        return None
    return [(step["pattern"]["String"], step["content"]) for step in steps]


def _from_byte_fallback(token: str, replacements: list[tuple[str, str]]) -> bytes:
    for old, new in replacements:
        token = token.replace(old, new)
    match = BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each printable character that stands for one.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()


def _from_byte_alphabet(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # an added token is stored as plain text
        return token.encode()
