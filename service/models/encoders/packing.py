"""The inputs of an encoder's step, apart so that unpickling an executable imports little."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

HostOrDevice = Array | np.ndarray


class PackedTokens(NamedTuple):
    """The tokens of several texts in one row."""

    token_ids: Int[HostOrDevice, "token"]
    positions: Int[HostOrDevice, "token"]  # within their texts
    types: Int[HostOrDevice, "token"]  # 1 for the second text of a pair


class PackedTexts(NamedTuple):
    """Where the texts lie among the packed tokens."""

    segments: Int[HostOrDevice, "token"]  # which text each token belongs to; the number of texts for padding
    first: Int[HostOrDevice, "text"]  # token of each text
    pooled_from: Int[HostOrDevice, "text"]  # the first token of each text that is pooled: after the prompt, or `first`
    last: Int[HostOrDevice, "text"]


class GroupInputs(NamedTuple):
    """The inputs of a layer group besides weights."""

    hidden: Float[HostOrDevice, "token hidden"]  # from the previous layer group
    positions: Int[HostOrDevice, "token"]  # within their texts
    segments: Int[HostOrDevice, "token"]
    window: Int[HostOrDevice, ""]  # which of the row's windows no text crosses


class VectorInputs(NamedTuple):
    """The inputs of the program that ends a step."""

    hidden: Float[HostOrDevice, "token hidden"]  # from the last layer group
    texts: PackedTexts
