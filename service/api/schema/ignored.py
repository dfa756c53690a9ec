"""Fields that have no effect; importing this file does not import Pydantic, as the first answers of a start need."""

import re
from typing import NamedTuple


class IgnoredField(NamedTuple):
    """A field that was accepted and has no effect."""

    path: str  # where the request has it first, such as `messages[2].cache_control`
    is_known: bool = True  # whether an interface that this server follows has the field

    @property
    def name(self) -> str:
        """The path without indices, so that all messages count as one."""
        return re.sub(r"\[\d+\]", "[]", self.path)
