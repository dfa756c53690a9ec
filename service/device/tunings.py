"""Tunings: the kernels that XLA chose by timing them on a GPU, in one file for each kind of GPU, kept with the source.

The first line of a file says for which GPU and which XLA it holds, and the rest is as XLA wrote it. XLA compiles no
program at all with a file that it cannot read, so that it is given none that is not whole.

Source: https://openxla.org/xla/persisted_autotuning (the flags that write and load such files)
"""

import hashlib
import logging
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "tunings"
# A comment in protobuf's text format.
FIRST_LINE = re.compile(rb"# jaxlib (?P<jaxlib>\S+), (?P<device>[^\n]+), sha256 (?P<sha256>[0-9a-f]{64})\n")


class Tunings(NamedTuple):
    """A file that XLA may be given."""

    path: Path
    sha256: str  # of what XLA wrote


def kept_tunings(device_kind: str) -> Tunings | None:
    """Return the tunings of a kind of GPU for the installed XLA; None, and a warning, if the file is of no use."""
    return _kept(FOLDER / file_name(device_kind), device_kind)


def file_name(device_kind: str) -> str:
    """Return the name of a kind's file, by whose end XLA knows that it is text."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', device_kind)}.textproto"


def sealed(written: bytes, device_kind: str) -> bytes:
    """Return what XLA wrote on a GPU of a kind, with the first line."""
    digest = hashlib.sha256(written).hexdigest()
    return f"# jaxlib {version('jaxlib')}, {device_kind}, sha256 {digest}\n".encode() + written


@cache
def _kept(path: Path, device_kind: str) -> Tunings | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    found = FIRST_LINE.match(data)
    if found is None:
        fault = "it does not begin with the line that names its versions"
    elif (jaxlib := found["jaxlib"].decode()) != version("jaxlib"):
        fault = f"it is of jaxlib {jaxlib}, and this is {version('jaxlib')}"
    elif (device := found["device"].decode(errors="replace")) != device_kind:
        fault = f"it is of {device}"
    elif hashlib.sha256(data[found.end() :]).hexdigest() != found["sha256"].decode():
        fault = "it is truncated or was changed"
    else:
        return Tunings(path, found["sha256"].decode())
    logger.warning(
        "the kept tunings of %s are ignored: %s. Kernels are chosen as without them; `make device-check` on such a "
        "machine writes new ones",
        device_kind,
        fault,
        extra={"file": str(path), "reason": fault},
    )
    return None
