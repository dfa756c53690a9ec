"""The ids of the tokens whose logits make a reranker's score, where the configuration names the tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.checkpoint.model_config import parse_json_object
from service.errors import MissingFile, UnsupportedModel
from service.models.encoders.token_scores import SCORE_TOKEN_IDS, SCORE_TOKENS, scores_by_tokens
from service.storage.objects import ObjectInfo
from service.storage.source import Source

TOKENIZER = "tokenizer.json"


def with_score_token_ids(
    uri: str, config: Mapping[str, Any], source: Source, objects: Sequence[ObjectInfo]
) -> Mapping[str, Any]:
    """Return the configuration with the ids of the tokens that it names; unchanged if it names none.

    Raises:
        MissingFile: there is no tokenizer.json.
        UnsupportedModel: the vocabulary lacks a token.
    """
    if not scores_by_tokens(config):
        return config
    found = [info for info in objects if info.name.rpartition("/")[2] == TOKENIZER]
    if not found:
        raise MissingFile(uri, f"{TOKENIZER} is missing, which has the ids of the tokens in {SCORE_TOKENS}.")
    content = parse_json_object(source.uri, TOKENIZER, source.read(found[0]))
    vocabulary = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    vocabulary |= (content.get("model") or {}).get("vocab") or {}
    missing = [token for token in config[SCORE_TOKENS] if token not in vocabulary]
    if missing:
        raise UnsupportedModel(
            uri, f"config.json: {SCORE_TOKENS} names {missing[0]!r}, which is no token of the model."
        )
    return {**config, SCORE_TOKEN_IDS: [vocabulary[token] for token in config[SCORE_TOKENS]]}
