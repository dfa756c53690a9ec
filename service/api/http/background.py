"""The mark of a request that comes from a batch of this process and from no client.

A scope is made by the server that reads the port, so a client cannot set its entries.
"""

from dataclasses import dataclass

from starlette.types import Scope

BACKGROUND = "levserve.background"


@dataclass(frozen=True)
class Background:
    """How a batch's request is answered: behind every client's, and within its batch's time."""

    timeout_s: float


def background_of(scope: Scope) -> Background | None:
    """Return the mark of a request; None if it comes from a client."""
    return scope.get(BACKGROUND)
