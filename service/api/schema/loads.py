"""The query of GET /v1/loads.

Source: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/v1_loads.py
"""

from typing import ClassVar, override

from pydantic import Field

from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.wire import NeutralValues, WireObject
from service.errors import InvalidParameter

SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")


class LoadsQuery(WireObject):
    """Which models' load is asked for, and which parts of it."""

    hints: ClassVar[NeutralValues] = {"dp_rank": ("0",)}
    refused: ClassVar[NeutralValues] = {"format": ("json",)}

    include: str = Field(default="all", max_length=MAX_NAME_CHARS)
    """SGLang's: parts of the load, separated by commas, of which there are `core` and `queues`."""
    model: str | None = Field(default=None, max_length=MAX_NAME_CHARS)

    @property
    def sections(self) -> frozenset[str]:
        """The parts, by SGLang's names."""
        return frozenset(name.strip() for name in self.include.split(",") if name.strip())

    @override
    def check_consistency(self) -> None:
        """Refuse a part that SGLang does not have either."""
        if unknown := sorted(self.sections - set(SECTIONS)):
            message = f"Invalid 'include': '{unknown[0][:32]}' is none of {', '.join(SECTIONS)}."
            raise InvalidParameter(message, param="include")
