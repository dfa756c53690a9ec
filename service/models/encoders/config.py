"""The geometry of an encoder, and how the hidden states of a text become its vector; no jax."""

from dataclasses import dataclass
from enum import StrEnum

from service.models.description import Activation


class Pooling(StrEnum):
    """The reduction of a text's hidden states to one vector, by the name that sentence-transformers gives it."""

    CLS = "cls"  # the first token's
    MAX = "max"  # of all tokens, in each dimension
    MEAN = "mean"  # of all tokens
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"  # the sum, divided by the root of the number of tokens
    WEIGHTED_MEAN = "weightedmean"  # of all tokens, each weighted by its position, which counts from 1
    LAST = "lasttoken"  # the last token's


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer that follows the pooling."""

    tensor: str  # its tensors' names without `.weight` and `.bias`
    in_size: int
    out_size: int
    has_bias: bool
    activation: Activation
    norm: str | None = None  # the tensor, without `.weight`, of a norm after the activation
    norm_eps: float = 0.0


@dataclass(frozen=True)
class TokenHeads:
    """The linear layers that turn the hidden state of each token into something else: those of bge-m3.

    Source: Chen et al. 2024, arXiv:2402.03216; FlagEmbedding `inference/embedder/encoder_only/m3.py`.
    """

    names: tuple[str, ...] = ()  # the tensors' names without `.weight` and `.bias`
    begin_id: int | None = None  # of the special tokens, which have no weight
    end_id: int | None = None


@dataclass(frozen=True)
class ScoreTokens:
    """The two tokens whose logits make a score."""

    no_id: int
    yes_id: int
    is_tied: bool  # whether logits are products with the embeddings, and not with weights of their own


@dataclass(frozen=True)
class VectorConfig:
    """The way from hidden states to a vector."""

    poolings: tuple[Pooling, ...] = (Pooling.MEAN,)  # their vectors are joined
    dense: tuple[DenseLayer, ...] = ()
    is_normalized: bool = False  # whether vectors have length 1
    is_score: bool = False  # whether a vector is the score of a pair of texts
    token_heads: TokenHeads = TokenHeads()
    score_tokens: ScoreTokens | None = None
    template: str | None = None  # the prompt around a pair of texts; None: what the tokenizer puts around it
    pools_prompts: bool = True  # whether the tokens of a text's prompt are pooled too
    kept_size: int | None = None  # the number of leading dimensions of a vector that are kept; None for all

    def size(self, hidden_size: int) -> int:
        """Return the dimensions of a vector of a model, given those of its hidden states."""
        if self.score_tokens is not None:
            return 1
        made = self.dense[-1].out_size if self.dense else hidden_size * len(self.poolings)
        return made if self.kept_size is None else min(made, self.kept_size)


@dataclass(frozen=True)
class EncoderNames:
    """The names of an encoder's tensors, without `.weight` and `.bias`; those of a layer without its prefix."""

    layer: str = "encoder.layer."  # before its number
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    position_bias: str = "encoder.relative_attention_bias"


@dataclass(frozen=True)
class EncoderConfig:
    """A post-norm bidirectional encoder with learned positions: BERT and its descendants."""

    model_type: str
    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_positions: int  # rows of the table of positions
    norm_eps: float
    activation: Activation
    vector: VectorConfig
    first_position: int = 0  # of a text's first token
    num_token_types: int = 1  # 0: a token has no type
    num_position_buckets: int = 0  # of distances between tokens, each with a bias of the scores; 0 for no bias
    names: EncoderNames = EncoderNames()

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def context_len(self) -> int:
        """The longest text, in tokens, that has positions."""
        return self.num_positions - self.first_position

    @property
    def vector_size(self) -> int:
        """The dimension of a text's vector."""
        return self.vector.size(self.hidden_size)

    @property
    def layers(self) -> tuple[None, ...]:
        """The descriptions of the layers, which do not differ."""
        return (None,) * self.num_layers
