"""Tokenizers of exports that have a SentencePiece model in place of a tokenizer.json.

Llama's and Gemma's are byte-pair encodings whose merges follow from the vocabulary, XLM-RoBERTa's and CamemBERT's
unigrams with the ids of fairseq; those of other models are as their own SentencePiece model describes them.
Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto,
transformers' convert_slow_tokenizer.py (SentencePieceExtractor, SpmConverter), tokenization_utils_base.py
(generate_merges)
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of pieces
BPE = 2  # a type of models


class Piece(NamedTuple):
    """A token of a model."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model's file that decide how it encodes."""

    pieces: Sequence[Piece]
    trainer: Mapping[int, Any]  # the numbered fields of TrainerSpec
    normalizer: Mapping[int, Any]  # those of NormalizerSpec

    @classmethod
    def parse(cls, content: bytes) -> "SentencePieceModel":
        """Return the model of a file; raises ValueError if it is none."""
        pieces: list[Piece] = []
        specs: dict[int, dict[int, Any]] = {}
        for number, value in _fields(content):
            if number == 1:
                piece = dict(_fields(value))
                [score] = struct.unpack("<f", piece.get(2, bytes(4)))
                pieces.append(Piece(piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
            elif isinstance(value, bytes):
                specs[number] = dict(_fields(value))
        if not pieces:
            raise ValueError("it has no pieces")
        return cls(pieces, specs.get(2, {}), specs.get(3, {}))

    @property
    def is_bpe(self) -> bool:
        """Whether it merges pairs of pieces, rather than choosing the likeliest ones."""
        return self.trainer.get(3, 1) == BPE

    def name(self, number: int, default: str) -> str:
        """Return the text of a special piece, by the field that has it."""
        return self.trainer[number].decode() if number in self.trainer else default

    @property
    def own_names(self) -> dict[str, str]:
        """The special tokens that the model names, by transformers' names."""
        ids = {"unk_token": (40, 45, "<unk>", 0), "bos_token": (41, 46, "<s>", 1), "eos_token": (42, 47, "</s>", 2)}
        return {
            name: self.name(text, default)
            for name, (number, text, default, token_id) in ids.items()
            if self.trainer.get(number, token_id) < 1 << 31  # a negative one is none
        }

    @property
    def added(self) -> list[AddedToken]:
        """The pieces that texts are split at."""
        return [
            AddedToken(piece.text, normalized=False, special=piece.type == CONTROL)
            for piece in self.pieces
            if piece.type in (CONTROL, USER_DEFINED)
        ]


def llama(model: SentencePieceModel, files: Mapping[str, Any]) -> Tokenizer:
    """Return the backend of Llama's class; `files` is a tokenizer_config.json."""
    backend = Tokenizer(_merging(model, unk_token=None))
    has_space, is_legacy = files.get("add_prefix_space") is not False, files.get("legacy") is True
    scheme = "never" if not has_space else "always" if is_legacy else "first"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if has_space else [])])
    return backend


def gemma(model: SentencePieceModel, _: Mapping[str, Any]) -> Tokenizer:
    """Return the backend of Gemma's class."""
    backend = Tokenizer(_merging(model, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def xlm_roberta(model: SentencePieceModel, files: Mapping[str, Any]) -> Tokenizer:
    """Return the backend of XLM-RoBERTa's class."""
    before = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    return _fairseq(model, [*before, *_scored(model.pieces[3:]), ("<mask>", 0.0)], files)


def camembert(model: SentencePieceModel, files: Mapping[str, Any]) -> Tokenizer:
    """Return the backend of CamemBERT's class."""
    before = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    return _fairseq(model, [*before, *_scored(model.pieces[1:]), ("<mask>", 0.0)], files)


def as_described(model: SentencePieceModel, _: Mapping[str, Any]) -> Tokenizer:
    """Return the backend that encodes as the model itself does."""
    has_bytes, unknown = bool(model.trainer.get(35, 0)), model.name(45, "<unk>")
    own = [piece.text for piece in model.pieces if piece.type == USER_DEFINED]
    if model.is_bpe:
        vocab = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
        merges = _merges_by_score(model.pieces)
        bpe = models.BPE(
            vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes,
            ignore_merges=bool(own),
        )  # fmt: skip
        backend = Tokenizer(bpe)
    else:
        backend = Tokenizer(models.Unigram(_scored(model.pieces), model.trainer.get(40, 0), has_bytes))
    spec = model.normalizer
    has_prefix = bool(spec.get(3, 1))
    steps: list[normalizers.Normalizer] = _charsmap(model)
    if spec.get(4, 1):  # only spaces: other whitespace stays
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.get(5, 1):
        steps.append(normalizers.Replace(" ", "▁"))
    if has_prefix:  # the library adds none to a text that begins with one
        steps.append(normalizers.Replace(Regex(r"\A▁"), "▁▁"))
    backend.normalizer = normalizers.Sequence(steps)
    parts: list[pre_tokenizers.PreTokenizer] = []
    if has_prefix:
        parts.append(pre_tokenizers.Metaspace(prepend_scheme="always", split=False))
    if own:
        pattern = "|".join(map(re.escape, sorted(own, key=len, reverse=True)))
        parts.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    if parts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    ends = [decoders.Fuse()] if has_prefix or has_bytes else []
    ends += [decoders.Strip(" ", 1, 0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if has_bytes else []), *ends]
    )
    return backend


def _fairseq(model: SentencePieceModel, vocab: list[tuple[str, float]], files: Mapping[str, Any]) -> Tokenizer:
    backend = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    if charsmap := _charsmap(model):
        [backend.normalizer] = charsmap
    scheme = "never" if files.get("add_prefix_space") is False else "always"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return backend


def _charsmap(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    charsmap = model.normalizer.get(2)
    return [normalizers.Precompiled(charsmap)] if charsmap else []


def _scored(pieces: Sequence[Piece]) -> list[tuple[str, float]]:
    return [(piece.text, piece.score) for piece in pieces]


def _merging(model: SentencePieceModel, unk_token: str | None) -> models.BPE:
    vocab = {piece.text: token_id for token_id, piece in enumerate(model.pieces)}
    pairs = (
        (vocab[token], len(left), len(right), vocab[left], vocab[right], left, right)
        for token in vocab
        for left, right in _halves(token)
        if left in vocab and right in vocab
    )
    merges = [pair[-2:] for pair in sorted(pairs)]
    return models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=unk_token)


def _merges_by_score(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    normal = {piece.text: (-piece.score, index) for index, piece in enumerate(pieces) if piece.type == NORMAL}
    pairs = (
        (*rank, left, right)
        for token, rank in normal.items()
        for left, right in _halves(token)
        if left in normal and right in normal
    )
    return [pair[-2:] for pair in sorted(pairs)]


def _halves(token: str) -> Iterator[tuple[str, str]]:
    return ((token[:at], token[at:]) for at in range(1, len(token)))


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of a message of protocol buffers; raises ValueError if it is none.

    Source: https://protobuf.dev/programming-guides/encoding/
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field is of type {wire}")
        if at + size > len(content):
            raise ValueError("it ends within a field")
        yield number, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(content) and shift < 70:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("it ends within a number")
