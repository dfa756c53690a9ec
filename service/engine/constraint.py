"""The interface for structured output: a host-side rule that masks each next token."""

from typing import Protocol, Self, runtime_checkable

import numpy as np
from jaxtyping import UInt


@runtime_checkable
class Constraint(Protocol):
    """The rule of one sequence; only the device thread uses it once its request is submitted."""

    @property
    def is_free(self) -> bool:
        """Whether any token may be sampled next, so that no mask is needed."""
        ...

    def copy(self) -> Self:
        """Return the same rule at the same token, which advances by itself: by tokens that may not come."""
        ...

    def forced_tokens(self) -> list[int]:
        """Return tokens that are all but certain to come next, because the rule leaves no other text; often none."""
        ...

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next: one bit per token, the lowest bit of a word first.

        Raises:
            ConstraintError: the rule cannot be applied; the sequence ends with this error.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Advance by a sampled token, which the mask allowed; a token that ends the sequence is not passed.

        Raises:
            ConstraintError: the rule cannot be applied; the sequence ends with this error.
        """
        ...
