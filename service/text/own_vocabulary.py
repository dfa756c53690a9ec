"""Tokenizers of exports that have a model's own vocabulary files in place of a tokenizer.json, by their class.

Three families have such files: byte-level BPE (vocab.json, merges.txt), WordPiece (vocab.txt) and SentencePiece
(tokenizer.model).
Source: transformers `models/*/tokenization_*.py` (each class's `__init__`), `models/auto/tokenization_auto.py`
"""

import mmap
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from service.errors import MalformedCheckpoint
from service.text.class_options import AS_IN_FILE
from service.text.json_file import read_json
from service.text.sentencepiece_model import SentencePieceModel, as_described, camembert, gemma, llama, xlm_roberta
from service.text.special_tokens import ADDED, CONFIG, EXTRA, OLD_EXTRA, SpecialTokens, read_special_tokens

PAIR, WORDS = ("vocab.json", "merges.txt"), "vocab.txt"
SENTENCEPIECE = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
_CONTROL = re.compile(r"<\|(?![0-9.]+\|>).+\|>")  # Whisper's timestamps are text to a decoder
# Source: transformers `models/qwen2/tokenization_qwen2.py` (PRETOKENIZE_REGEX)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerClass(NamedTuple):
    """What a class of tokenizers has that its files do not say."""

    names: Mapping[str, str]  # of special tokens
    around: str | None = None  # what stands around texts: "roberta" (</s></s> between two), "pairs", "bert"
    is_qwen2: bool = False  # texts are composed (NFC) and split by another pattern than GPT-2's
    pieces: Callable[[SentencePieceModel, Mapping[str, Any]], Tokenizer] | None = None  # of a SentencePiece model


_ANGLES = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}
_ANGLES |= {"pad_token": "<pad>", "mask_token": "<mask>"}
_SQUARES = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
_SQUARES |= {"mask_token": "[MASK]"}
_END = "<|endoftext|>"
_GPT2 = TokenizerClass({"bos_token": _END, "eos_token": _END, "unk_token": _END})
_QWEN = TokenizerClass({"eos_token": _END, "unk_token": _END, "pad_token": _END}, is_qwen2=True)
_ROBERTA = TokenizerClass(_ANGLES, "roberta")
_BERT = TokenizerClass(_SQUARES, "bert")
_DEBERTA = TokenizerClass({**_SQUARES, "bos_token": "[CLS]", "eos_token": "[SEP]"}, "pairs")
_MPNET = TokenizerClass({**_ANGLES, "unk_token": "[UNK]"}, "roberta")
_LLAMA = TokenizerClass({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, pieces=llama)
_GEMMA = TokenizerClass(
    {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"},
    pieces=gemma,
)
_UNNAMED = TokenizerClass({})
# Classes whose own vocabulary files say all else.
NAMES = {
    "Albert": {**_SQUARES, "bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"},
    "T5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
}
# By the name of transformers' class, without `Tokenizer` and `Fast`, and by the `model_type` of a config.json.
CLASSES = {
    **dict.fromkeys(("Llama", "llama"), _LLAMA),
    **dict.fromkeys(("Gemma", "gemma", "gemma2", "gemma3", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("XLMRoberta", "xlm-roberta"), TokenizerClass(_ANGLES, "pairs", pieces=xlm_roberta)),
    **dict.fromkeys(("Camembert", "camembert"), TokenizerClass(_ANGLES, "pairs", pieces=camembert)),
    **dict.fromkeys(("Roberta", "Bart", "Longformer", "LED", "roberta", "bart", "longformer", "led"), _ROBERTA),
    **dict.fromkeys(("data2vec-text", "roberta-prelayernorm", "ibert"), _ROBERTA),
    **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert", "Nomic", "ConvBert", "Lxmert"), _BERT),
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert", "nomic_bert", "convbert", "ernie"), _BERT),
    **dict.fromkeys(("MPNet", "mpnet"), _MPNET),
    **dict.fromkeys(("Deberta", "deberta"), _DEBERTA),
    **dict.fromkeys(("Qwen2", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen3_vl"), _QWEN),
    **dict.fromkeys(("GPT2", "CodeGen", "GPTNeoX", "Whisper"), _GPT2),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen", "whisper", "opt", "phi", "starcoder2"), _GPT2),
}


def class_of(folder: Path, uri: str, config: Mapping[str, Any]) -> TokenizerClass | None:
    """Return the class of a folder's tokenizer; None if it is none of those known here."""
    stated = read_json(folder, CONFIG, uri).get("tokenizer_class") or config.get("tokenizer_class")
    if config.get("model_type") in AS_IN_FILE and stated in (None, "LlamaTokenizer", "LlamaTokenizerFast"):
        return CLASSES.get(config["model_type"])
    by_name = CLASSES.get(re.sub(r"Tokenizer(Fast)?$", "", stated)) if isinstance(stated, str) else None
    return by_name or CLASSES.get(config.get("model_type") or "")


def class_names(folder: Path, uri: str, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the special tokens of the class that a tokenizer.json's folder states, of those that the file has."""
    files = read_json(folder, CONFIG, uri)
    stated = files.get("tokenizer_class")
    if not isinstance(stated, str) or config.get("model_type") in AS_IN_FILE:
        return {}
    name = re.sub(r"Tokenizer(Fast)?$", "", stated)
    names = NAMES.get(name) or CLASSES.get(name, _UNNAMED).names
    unnamed = {name: token for name, token in names.items() if name not in files}
    file = folder / "tokenizer.json"
    if not unnamed or not file.stat().st_size:
        return {}
    # Mapped, because what a vocabulary of 30 MB has of them stands in its first lines.
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {name: token for name, token in unnamed.items() if content.find(f'"{token}"'.encode()) >= 0}


def own_names(folder: Path, uri: str, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the special tokens of a folder without a tokenizer.json that no file beside its vocabulary has to name.

    Raises:
        MalformedCheckpoint: the vocabulary is none.
    """
    if (kind := class_of(folder, uri, config)) is not None:
        return kind.names
    name = next((name for name in SENTENCEPIECE if (folder / name).is_file()), None)
    return {} if name is None else _model_of(folder, uri, name).own_names


def own_tokenizer(folder: Path, uri: str, config: Mapping[str, Any]) -> bytes | None:
    """Return the tokenizer.json that a folder's own vocabulary files stand for; None if it has none.

    Args:
        folder: where the files lie.
        uri: where they came from, for error messages.
        config: the model's, which names the class of tokenizers if no file of the tokenizer does.

    Raises:
        MalformedCheckpoint: a file does not hold what its name says.
    """
    files = read_json(folder, CONFIG, uri)
    kind = class_of(folder, uri, config)
    if all((folder / name).is_file() for name in PAIR):
        kind = kind or _GPT2
        backend, vocab = _byte_level(folder, uri, kind, files)
    elif (folder / WORDS).is_file():
        kind = kind or _BERT
        backend, vocab = _word_pieces(folder, uri, files, kind.names["unk_token"])
    elif (pieces := next((name for name in SENTENCEPIECE if (folder / name).is_file()), None)) is not None:
        return _sentencepiece(folder, uri, pieces, kind, files)
    else:
        return None
    special = read_special_tokens(folder, uri, kind.names)
    is_older = "added_tokens_decoder" not in files
    special.add_to(backend)
    for token, stated in special.stated_ids.items():
        if (found := backend.token_to_id(token)) != stated:
            reason = f"has {token!r} as {stated}, which would be {found} in their order"
            raise MalformedCheckpoint(uri, ADDED if is_older else CONFIG, reason)
    if is_older:  # which does not say what is special
        known = {**vocab, **special.stated_ids}
        controls = [token for token in sorted(known, key=known.__getitem__) if _CONTROL.fullmatch(token)]
        backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    backend.post_processor = _around(backend, special, kind.around, files)
    return backend.to_str().encode()


def _sentencepiece(folder: Path, uri: str, name: str, kind: TokenizerClass | None, files: Mapping[str, Any]) -> bytes:
    model = _model_of(folder, uri, name)
    make = as_described if kind is None or kind.pieces is None else kind.pieces
    try:
        backend = make(model, files)
    except Exception as error:  # the library raises bare Exception
        raise MalformedCheckpoint(uri, name, f"is not a SentencePiece model: {error}") from error
    special = read_special_tokens(folder, uri, model.own_names if kind is None else kind.names)
    if not any(files.get(key) for key in (EXTRA, OLD_EXTRA)):
        # Where the model itself describes how it encodes, it keeps the pieces of its users whole by its pattern.
        pieces = [token for token in model.added if token.special or make is not as_described]
        special = special._replace(named=[*special.named, *pieces])
    special.add_to(backend)
    backend.post_processor = _around(backend, special, None if kind is None else kind.around, files)
    return backend.to_str().encode()


def _model_of(folder: Path, uri: str, name: str) -> SentencePieceModel:
    try:
        return SentencePieceModel.parse((folder / name).read_bytes())
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        reason = (
            f"is not a SentencePiece model: {error}. If it is tiktoken's, convert it once with transformers: "
            "AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH)."
        )
        raise MalformedCheckpoint(uri, name, reason) from error


def _byte_level(
    folder: Path, uri: str, kind: TokenizerClass, files: Mapping[str, Any]
) -> tuple[Tokenizer, dict[str, int]]:
    vocab = read_json(folder, PAIR[0], uri)
    if not all(type(token_id) is int for token_id in vocab.values()):
        raise MalformedCheckpoint(uri, PAIR[0], "has tokens whose ids are no integers")
    try:
        lines = (folder / PAIR[1]).read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")]
        backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises bare Exception
        raise MalformedCheckpoint(uri, PAIR[1], f"is not a list of merges: {error}") from error
    has_space = files.get("add_prefix_space") is True
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=has_space)
    if kind.is_qwen2:
        backend.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated")
        parts = pre_tokenizers.ByteLevel(add_prefix_space=has_space, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, parts])
    return backend, vocab


def _word_pieces(folder: Path, uri: str, files: Mapping[str, Any], unknown: str) -> tuple[Tokenizer, dict[str, int]]:
    try:
        lines = (folder / WORDS).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise MalformedCheckpoint(uri, WORDS, "is not UTF-8 text") from error
    words = lines[:-1] if lines[-1] == "" else lines
    vocab = {word.rstrip("\r"): token_id for token_id, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=files.get("tokenize_chinese_chars") is not False,
        strip_accents=files.get("strip_accents"),
        lowercase=files.get("do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend, vocab


def _around(
    backend: Tokenizer, special: SpecialTokens, around: str | None, files: Mapping[str, Any]
) -> processors.PostProcessor:
    """Return what puts special tokens around texts: that of the class, else those that tokenizer_config.json asks for.

    Source: transformers' TokenizersBackend.update_post_processor
    """
    names = special.names
    if around is not None:
        cls, sep = ((names[name], backend.token_to_id(names[name])) for name in ("cls_token", "sep_token"))
        if around == "roberta":
            return processors.RobertaProcessing(sep, cls)
        between = f"{sep[0]}:0 $B:1 {sep[0]}:1" if around == "bert" else f"{sep[0]} {sep[0]} $B {sep[0]}"
        single, pair = f"{cls[0]} $A {sep[0]}", f"{cls[0]} $A {between}"
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[cls, sep])
    begin, end = (names.get(name) if files.get(f"add_{name}") is True else None for name in ("bos_token", "eos_token"))
    single = " ".join(filter(None, (begin, "$A", end)))
    pair = " ".join(f"{token}:1" for token in (begin, "$B", end) if token)
    tokens = {token: backend.token_to_id(token) for token in (begin, end) if token is not None}
    return processors.TemplateProcessing(single=single, pair=f"{single} {pair}", special_tokens=list(tokens.items()))
