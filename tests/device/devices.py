"""Devices that are not there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NamedDevice:
    """A device of a kind, with so much memory."""

    id: int
    platform: str = "gpu"
    device_kind: str = "L4"
    client: Any = None
    limit_bytes: int | None = None
    compute_capability: str = ""

    def memory_stats(self) -> Mapping[str, int] | None:
        return None if self.limit_bytes is None else {"bytes_limit": self.limit_bytes}


def host(number: int, platform: str = "gpu") -> list[NamedDevice]:
    """Return the devices of one host."""
    return [NamedDevice(index, platform) for index in range(number)]
