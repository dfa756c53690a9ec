"""Refuse every connection and every look-up of a name beyond this machine.

Python imports a module of this name by itself where its folder lies on PYTHONPATH, so that the processes that tests
start refuse as well. A refusal is written to REFUSALS, because the code under test may handle the error; the test that
caused it fails at its end. Sockets that are opened outside Python (by tensorstore, say) are not seen.
"""

import ipaddress
import os
import socket
import sys
from pathlib import Path

REFUSALS = Path(os.environ["LOOPBACK_REFUSALS"])


class NetworkRefused(OSError):
    """A test tried to reach another machine."""


def _is_here(host: object) -> bool:
    name = os.fsdecode(host) if isinstance(host, bytes) else host
    if name in (None, "", "localhost") or not isinstance(name, str):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _is_address(host: object) -> bool:
    try:
        ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return True


def _refuse_others(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        is_allowed = not isinstance(address, tuple) or _is_here(address[0])  # the address of a Unix socket is a path
        target = address
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        target = arguments[0]
        if str(target).endswith(".invalid"):  # Source: RFC 2606, section 2: there is no such host, ever
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        is_allowed = _is_here(target) or _is_address(target)  # an address takes no look-up
    else:
        return
    if not is_allowed:
        with REFUSALS.open("a") as file:
            file.write(f"{event} {target!r} by {sys.argv}\n")
        raise NetworkRefused(f"tests reach no other machine, and this is one: {target!r}")


sys.addaudithook(_refuse_others)
