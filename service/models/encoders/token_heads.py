"""Outputs for each token of a text: its vector, and for bge-m3 its lexical weight.

They are computed on the host from the hidden states of the last layer, so no model needs a compiled program for them.
Source: Chen et al. 2024, arXiv:2402.03216, section 3.2; FlagEmbedding `inference/embedder/encoder_only/m3.py`; vLLM
`model_executor/models/roberta.py` (which special tokens are left out).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from service.models.encoders.config import TokenHeads, VectorConfig

SPARSE, COLBERT = "sparse_linear", "colbert_linear"
HEAD_SIZES = {SPARSE: 1, COLBERT: 0}  # rows; 0 for as many as a hidden state has numbers
SMALLEST_LENGTH = 1e-12  # source: torch.nn.functional.normalize, its default eps
# Beside the model's own files; each holds the weight and the bias of one head.
TOKEN_HEAD_FILES = tuple(f"{head}{suffix}" for head in HEAD_SIZES for suffix in (".safetensors", ".pt"))


def read_token_heads(files: Sequence[str], config: Mapping[str, object]) -> TokenHeads:
    """Return the heads that have a file of their own beside the model.

    Args:
        files: the names of the files of weights.
        config: the content of `config.json`.
    """
    names = tuple(
        head for head in HEAD_SIZES if any(file in TOKEN_HEAD_FILES and file.startswith(f"{head}.") for file in files)
    )
    begin_id, end_id = (config.get(f"{name}_token_id") for name in ("bos", "eos"))
    return TokenHeads(
        names, begin_id if isinstance(begin_id, int) else None, end_id if isinstance(end_id, int) else None
    )


class TokenOutputs:
    """The outputs of a model's tokens; it holds the weights of its heads on the host."""

    def __init__(
        self,
        vector: VectorConfig,
        weights: Mapping[str, np.ndarray],
        norm: Callable[[np.ndarray], np.ndarray] = lambda hidden: hidden,
    ) -> None:
        """Take the heads of `vector` from the weights, by name; `norm` is applied to hidden states first."""
        self._heads, self._norm = vector.token_heads, norm
        self._weights = {
            name: np.asarray(weights[name], np.float32) for head in self._heads.names for name in (head, f"{head}.bias")
        }

    @property
    def has_weights(self) -> bool:
        """Whether a token has a lexical weight."""
        return SPARSE in self._heads.names

    def vectors(
        self, hidden: Float[np.ndarray, "token hidden"], token_ids: Sequence[int]
    ) -> Float[np.ndarray, "kept vector"]:
        """Return the vectors of tokens, each of length 1; a model with a head for them has none of the first token."""
        vectors = self._norm(hidden)
        if COLBERT in self._heads.names:
            vectors = self._head(COLBERT, vectors[self._first(token_ids) :])
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST_LENGTH)

    def weights(self, hidden: Float[np.ndarray, "token hidden"], token_ids: Sequence[int]) -> Float[np.ndarray, "kept"]:
        """Return the lexical weights of tokens, at least 0, without those of the first and the last special token."""
        end = len(token_ids) - (token_ids[-1] == self._heads.end_id)
        return np.maximum(self._head(SPARSE, hidden[self._first(token_ids) : end])[:, 0], 0)

    def _first(self, token_ids: Sequence[int]) -> int:
        return int(token_ids[0] == self._heads.begin_id)

    def _head(self, name: str, hidden: Float[np.ndarray, "token hidden"]) -> Float[np.ndarray, "token out"]:
        return hidden @ self._weights[name].T + self._weights[f"{name}.bias"]
