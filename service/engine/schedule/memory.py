"""An encoder's output that some sequences hold together, and a part of its encoding."""

from dataclasses import dataclass

from service.engine.request import Medium


@dataclass(slots=True, eq=False)
class Memory:
    """The output for one medium, which some sequences hold together: keys and values, or rows."""

    medium: Medium
    root: bytes  # of the keys of its pages
    pages: list[int]  # of the cache; or the places of rows
    num_parts: int  # of the encoder, that were planned
    num_holders: int = 1


@dataclass(frozen=True, slots=True)
class EncoderPart:
    """One part of the encoding of a memory, to be run between two steps."""

    memory: Memory
    number: int  # of the part
    is_last: bool  # whether it writes the pages
