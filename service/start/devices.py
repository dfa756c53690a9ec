"""The devices of this host, which every start of a process shares."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.device.memory import Device

if TYPE_CHECKING:
    from service.compile.counter import CompileCounter


@dataclass(frozen=True)
class Devices:
    """The devices of this host, and the counter of what is compiled for them."""

    devices: tuple[Device, ...]
    compiles: "CompileCounter"
