"""Up to how many tokens a GPU multiplies by weights in 8 bits without quantizing tokens, from a table of measurements.

Few tokens are multiplied while the weight is read, so that quantizing them costs more than the tensor cores of 8 bits
save. `make device-check` measures where that ends, and writes the table of `service/device/tunings`.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from service.device.chips import cuda_capability
from service.device.memory import Device
from service.device.tunings import FOLDER

FILE = FOLDER / "widened_tokens.json"


class WidenedTokens(NamedTuple):
    """The largest number of tokens, by the type of the weight."""

    int8: int
    fp8: int

    def of(self, dtype: object) -> int:
        """Return that of a weight in 8 bits."""
        return self.int8 if dtype == "int8" else self.fp8


NEVER_WIDENED = WidenedTokens(0, 0)
UNMEASURED = 64  # those of a decode step
HOPPER = (9, 0)  # from which on XLA's products widen FP8 inside; before, they would be given a widened copy


def widened_tokens(device: Device) -> WidenedTokens:
    """Return those of a GPU."""
    found = kept_table().get(device.device_kind)
    if found is not None:
        return WidenedTokens(**found)
    return WidenedTokens(UNMEASURED, UNMEASURED if cuda_capability(device) >= HOPPER else 0)


def written_table(device_kind: str, measured: WidenedTokens) -> str:
    """Return the table with what was measured on a kind of GPU, as the file holds it."""
    return json.dumps({**kept_table(), device_kind: measured._asdict()}, indent=2, sort_keys=True) + "\n"


@cache
def kept_table() -> Mapping[str, Mapping[str, int]]:
    """Return what was measured, by kind of GPU."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}
