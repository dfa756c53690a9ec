"""What turns queries and keys; a file of its own, since who loads an executable imports what goes in and out."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles."""

    cosine: Float[Array, "seq token half_head_dim"]
    sine: Float[Array, "seq token half_head_dim"]
