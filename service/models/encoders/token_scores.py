"""Rerankers without a head: a pair's score is how likely one token is to follow rather than another, "yes" and "no".

Their checkpoints are those of a model that generates text, so nothing but `classifier_from_token` says that they
rerank. Source: Zhang et al. 2025, arXiv:2506.05176, section 2 (Qwen3-Reranker); vLLM
`model_executor/models/adapters.py` (classifier_from_token, the difference of two rows).
"""

from collections.abc import Mapping
from typing import Any

from service.errors import UnsupportedModel
from service.models.config import HubConfig
from service.models.encoders.config import Pooling, ScoreTokens, VectorConfig
from service.models.registry import OWN_HEAD

SCORE_TOKENS = "classifier_from_token"  # of `config.json`: the token of no relevance, and that of relevance
SCORE_TOKEN_IDS = "classifier_from_token_ids"  # the same, as the tokenizer numbers them
TEMPLATE = "qwen3_reranker"
FAMILIES = ("qwen3",)


def scores_by_tokens(values: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` says that the model reranks by its tokens."""
    return values.get(SCORE_TOKENS) is not None


def token_score_config(config: HubConfig) -> VectorConfig:
    """Return the way from hidden states to a score.

    Raises:
        UnsupportedModel: the family has no known prompt, or the key does not name two tokens.
    """
    model_type, tokens = config.values["model_type"], config.values[SCORE_TOKENS]
    if model_type not in FAMILIES:
        message = f"{SCORE_TOKENS} is served for {', '.join(FAMILIES)}, and not for {model_type!r}."
        raise UnsupportedModel(config.uri, f"config.json: {message}")
    if not (isinstance(tokens, list) and len(tokens) == 2 and all(isinstance(token, str) for token in tokens)):
        message = f'{SCORE_TOKENS} must name two tokens, such as ["no", "yes"].'
        raise UnsupportedModel(config.uri, f"config.json: {message}")
    no_id, yes_id = config.values[SCORE_TOKEN_IDS]
    is_tied = config.flag("tie_word_embeddings")
    score = ScoreTokens(
        no_id, yes_id, is_tied=not own if isinstance(own := config.values.get(OWN_HEAD), bool) else is_tied
    )
    return VectorConfig((Pooling.LAST,), is_score=True, score_tokens=score, template=TEMPLATE)
