"""The tokens that a tokenizer's files name or add, by transformers' rule of which file counts.

`added_tokens_decoder` of tokenizer_config.json, where it is, replaces special_tokens_map.json and added_tokens.json,
which are of older exports; without it, special_tokens_map.json counts before tokenizer_config.json. What a file names
and the vocabulary lacks gets the next free id.
Source: transformers' tokenization_utils_base.py (_from_pretrained), tokenization_utils_tokenizers.py
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken

from service.errors import MalformedCheckpoint
from service.text.json_file import read_json

logger = logging.getLogger(__name__)

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
OF_MODEL = "model_specific_special_tokens"  # of transformers 5, by names such as `image_token`


class SpecialTokens(NamedTuple):
    """What the files beside a tokenizer.json say of its tokens."""

    names: Mapping[str, str]  # by transformers' names, those of one model included: {"image_token": "<image>"}
    added: Sequence[AddedToken]  # in the order in which new ones get ids
    named: Sequence[AddedToken]  # added where the tokenizer has not marked them as tokens of their own
    stated_ids: Mapping[str, int]  # what the files say of the ids of added tokens
    splits_special: bool  # whether texts have no special tokens: their names are encoded as text

    def add_to(self, backend: tokenizers.Tokenizer) -> None:
        """Add to a tokenizer what it lacks, and mark its tokens as the files do."""
        present = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        known = present.keys() | {token.content for token in self.added}
        missing: dict[str, AddedToken] = {}
        for token in self.named:
            if token.content not in known:
                missing.setdefault(token.content, token)
        tokens = [*self.added, *missing.values()]
        changed = [token for token in tokens if repr(present.get(token.content)) != repr(token)]
        if changed:
            backend.add_tokens(changed)
        backend.encode_special_tokens = self.splits_special
        if elsewhere := [token for token, stated in self.stated_ids.items() if backend.token_to_id(token) != stated]:
            first = elsewhere[0]
            logger.warning(
                "%s states other ids than the vocabulary, whose ids count: %r is %s and not %s (%s in all)",
                CONFIG, first, backend.token_to_id(first), self.stated_ids[first], len(elsewhere),
            )  # fmt: skip


def read_special_tokens(folder: Path, uri: str, defaults: Mapping[str, str] | None = None) -> SpecialTokens:
    """Return what the files of a tokenizer say of its tokens.

    Args:
        folder: where they lie.
        uri: where they came from, for error messages.
        defaults: names that the class of the tokenizer has if no file has them.

    Raises:
        MalformedCheckpoint: a file is not a JSON object, or has tokens that are none.
    """
    stated: dict[str, Any] = {**(defaults or {}), **read_json(folder, CONFIG, uri)}
    extra = stated.get(EXTRA) or stated.get(OLD_EXTRA)
    of_model = stated.get(OF_MODEL) or {}
    older = read_json(folder, MAP, uri)
    added, stated_ids = _added_tokens(uri, stated)
    if "added_tokens_decoder" not in stated:
        extra = _joined(extra, older.get(EXTRA)) or older.get(OLD_EXTRA)
        stated |= older
        others = extra if isinstance(extra, list) else []
        special = _contents([*(stated.get(name) for name in NAMES), *others])
        added, stated_ids = _older_added_tokens(folder, uri, special)
    for named_by_model in (of_model, extra):
        if isinstance(named_by_model, dict):
            stated |= {name: token for name, token in named_by_model.items() if name not in NAMES}
    if isinstance(extra, dict):
        extra = ()
    known = {token.content: token for token in added}
    named = {
        name: known.get(content) or _token(value)
        for name in (*NAMES, *(name for name in stated if name.endswith("_token") and name not in NAMES))
        if (content := _content(value := stated.get(name))) is not None
    }
    for token in named.values():
        token.special = True
    names = {name: token.content for name, token in named.items()}
    extras = [_token(value) for value in extra or () if _content(value) is not None]
    return SpecialTokens(
        names, added, [*named.values(), *extras], stated_ids, stated.get("split_special_tokens") is True
    )


def _joined(extra: Any, older: Any) -> Any:
    """Return the further tokens of a configuration, and after them those of an older file that are new."""
    if not isinstance(extra, list) or not isinstance(older, list):
        return extra or older
    known = _contents(extra)
    return [*extra, *(token for token in older if _content(token) not in known)]


def _added_tokens(uri: str, config: Mapping[str, Any]) -> tuple[list[AddedToken], dict[str, int]]:
    decoder = config.get("added_tokens_decoder") or {}
    try:
        by_id = {int(token_id): AddedToken(**_attributes(token)) for token_id, token in decoder.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedCheckpoint(uri, CONFIG, f"added_tokens_decoder is not a table of tokens: {error}") from error
    ordered = sorted(by_id)
    return [by_id[token_id] for token_id in ordered], {by_id[token_id].content: token_id for token_id in ordered}


def _older_added_tokens(folder: Path, uri: str, special: set[str]) -> tuple[list[AddedToken], dict[str, int]]:
    stated = read_json(folder, ADDED, uri)
    if not all(type(token_id) is int for token_id in stated.values()):
        raise MalformedCheckpoint(uri, ADDED, "has tokens whose ids are no integers")
    ordered = sorted(stated, key=stated.__getitem__)
    tokens = [AddedToken(token, special=token in special, normalized=token not in special) for token in ordered]
    return tokens, {token: stated[token] for token in ordered}


def _attributes(token: Mapping[str, Any]) -> dict[str, Any]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": token["content"], **{name: bool(token[name]) for name in flags if name in token}}


def _content(value: Any) -> str | None:
    """Return the text of a token that a file states as text or as an object; None if it is neither."""
    found = value.get("content") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else None


def _contents(values: Sequence[Any]) -> set[str]:
    return {content for value in values if (content := _content(value)) is not None}


def _token(value: Any) -> AddedToken:
    return AddedToken(**(_attributes(value) if isinstance(value, Mapping) else {"content": value}) | {"special": True})
