"""RoPE tables, apart so that unpickling an executable does not import Haliax."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles, times the attention factor, and what multiplies its query."""

    cosine: Float[Array, "token half_rotary_dim"]
    sine: Float[Array, "token half_rotary_dim"]
    temperature: Float[Array, " token"] | None = None
