"""The mark of a request that comes from a batch of this process and from no client.

A scope is made by the server that reads the port, so a client cannot set its entries.
"""

from dataclasses import dataclass

# The scope's entry for the mark, a `Background`; a client's request has none.
BACKGROUND = "levserve.background"


@dataclass(frozen=True)
class Background:
    """How a batch's request is answered: behind every client's, and within its batch's time."""

    timeout_s: float
