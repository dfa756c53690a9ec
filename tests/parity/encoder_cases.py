"""Tiny random encoders, one per family and kind of head; needs neither jax nor torch.

A tensor's values follow from its name and shape, so that the reference maker and the tests make the same bytes without
sharing a file, whatever order they make them in.
"""

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

VOCAB_SIZE = 96
# More tokens than every window below, and both sides of the shortest row.
LENGTHS = (1, 2, 7, 16, 23, 40)

_GEOMETRY = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {"num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-5}
_GEMMA = {
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "use_bidirectional_attention": True,
}
_MODERNBERT = {"num_hidden_layers": 5, "local_attention": 8, "norm_eps": 1e-5, "cls_token_id": 1, "sep_token_id": 2}
_BERT = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2}
_XLM_ROBERTA = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
_ONE_LABEL = {"id2label": {"0": "LABEL_0"}}
_QWEN3_RERANKER = {"architectures": ["Qwen3ForSequenceClassification"], "head_dim": 16, **_ONE_LABEL}
# Two tokens of the tiny tokenizer.
_SCORE_TOKENS = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "classifier_from_token": ["cat", "dog"]}


@dataclass(frozen=True)
class EncoderCase:
    """One checkpoint, and the pooling of its vectors; None for a reranker's score."""

    name: str
    model_type: str
    pooling: str | None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def hub_config(self) -> dict[str, Any]:
        return {**_GEOMETRY, "model_type": self.model_type, **self.config}

    @property
    def scores_by_tokens(self) -> bool:
        return "classifier_from_token" in self.config

    @property
    def num_token_types(self) -> int:
        """How many kinds of tokens a reranker's texts have; vectors are of texts with one kind."""
        return self.config.get("type_vocab_size", 1) if self.pooling is None else 1

    @property
    def padding_id(self) -> int:
        return self.hub_config["pad_token_id"]

    @property
    def reference_path(self) -> Path:
        return Path(__file__).parent / "references" / f"encoder_{self.name}.npz"


def texts(padding_id: int = 0) -> list[list[int]]:
    """Token ids of texts of several lengths, without the padding token."""
    random = np.random.RandomState(7)
    return [random.randint(padding_id + 1, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def second_from(case: EncoderCase) -> list[int]:
    """Of each text, the first token of the second kind: its middle, or its end where the model has one kind."""
    return [length // 2 if case.num_token_types > 1 else length for length in LENGTHS]


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor by its name in the bare model: norms around one, the rest with a gain of about one."""
    bare = re.sub(r"^(model|bert|roberta)\.", "", name)
    random = np.random.RandomState(zlib.crc32(bare.encode()))
    return (random.randn(*shape) * 0.2 + (1.0 if "norm" in bare.lower() else 0.0)).astype(np.float32)


ENCODER_CASES = (
    EncoderCase("qwen3", "qwen3", "lasttoken", {**_GROUPED, "head_dim": 16}),
    EncoderCase(
        "qwen2_window",
        "qwen2",
        "lasttoken",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    EncoderCase("mistral", "mistral", "mean_tokens", {**_GROUPED, "sliding_window": 8}),
    EncoderCase("mistral_two_sided", "mistral", "mean_tokens", {**_GROUPED, "sliding_window": 8, "is_causal": False}),
    EncoderCase("llama", "llama", "mean_tokens", _GROUPED),
    EncoderCase("llama_biases", "llama", "mean_tokens", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    EncoderCase("eurobert", "eurobert", "mean_tokens", {**_GROUPED, "mask_token_id": 4}),
    EncoderCase("roberta_padding_0", "roberta", "cls_token", {**_BERT, "type_vocab_size": 1}),
    EncoderCase("gemma3", "gemma3_text", "mean_tokens", _GEMMA),
    EncoderCase("modernbert", "modernbert", "cls_token", _MODERNBERT),
    EncoderCase("bert", "bert", "mean_tokens", _BERT),
    EncoderCase("xlm_roberta", "xlm-roberta", "cls_token", _XLM_ROBERTA),
    EncoderCase("qwen3_reranker", "qwen3", None, {**_GROUPED, **_QWEN3_RERANKER}),
    EncoderCase("qwen3_tokens", "qwen3", None, {**_GROUPED, **_SCORE_TOKENS}),
    EncoderCase(
        "bert_reranker", "bert", None, {**_BERT, **_ONE_LABEL, "architectures": ["BertForSequenceClassification"]}
    ),
    EncoderCase(
        "xlm_roberta_reranker",
        "xlm-roberta",
        None,
        {**_XLM_ROBERTA, **_ONE_LABEL, "architectures": ["XLMRobertaForSequenceClassification"]},
    ),
    EncoderCase(
        "modernbert_reranker",
        "modernbert",
        None,
        {**_MODERNBERT, **_ONE_LABEL, "architectures": ["ModernBertForSequenceClassification"]},
    ),
)
