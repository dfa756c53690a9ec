"""The names that a service answers to if it listens only on this machine and asks for no key.

Then whoever can connect may use it. A page in this machine's browser can, by a name of its own that leads here: what it
sends names that host, and its origin.
Source: https://github.com/ollama/ollama/blob/main/server/routes.go (allowedHostsMiddleware),
https://www.rfc-editor.org/rfc/rfc9110#section-7.2
"""

import ipaddress
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.errors import respond
from service.errors import HostNotAllowed

LOCAL_NAMES = ("localhost", ".localhost")
ANY = "*"


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name, is this machine's own."""
    if host == LOCAL_NAMES[0] or host.endswith(LOCAL_NAMES[1]):
        return True
    try:
        address = ipaddress.ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback
    except ValueError:
        return False


class HostCheck:
    """ASGI middleware that refuses requests to other names, and those of pages of other origins."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Wrap an app.

        Args:
            app: the app that answers.
            hosts: names besides those of this machine; one that begins with a dot is all names that end so, `*` any.
            origins: origins whose pages may ask.
        """
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with its body unread."""
        if scope["type"] == "http" and (name := self._other_name(scope)) is not None:
            await respond(HostNotAllowed(name), scope, send, closes=True)
            return
        await self._app(scope, receive, send)

    def _other_name(self, scope: Scope) -> str | None:
        """Return the name that is refused, if any."""
        # HTTP/1.0 has no Host, and no browser speaks it.
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        for host in hosts:
            # Defends against T42.
            if not self._is_allowed(host):
                return host
        for origin in origins:
            _, separator, host = origin.partition("://")
            is_known = origin in self._origins or ANY in self._origins
            if not is_known and not (separator and self._is_allowed(host)):
                return origin
        return None

    def _is_allowed(self, host: str) -> bool:
        if ANY in self._hosts:
            return True
        name = host.lower()
        if name.startswith("["):
            name, bracket, port = name[1:].partition("]")
            is_whole = bool(bracket) and (not port or _is_port(port))
        else:
            name, colon, port = name.partition(":")
            is_whole = not colon or _is_port(colon + port)
        if not is_whole:
            return False
        ends = (host for host in self._hosts if host.startswith("."))
        return is_loopback(name) or name in self._hosts or any(map(name.endswith, ends))


def _is_port(text: str) -> bool:
    return text.startswith(":") and (text == ":" or (text[1:].isascii() and text[1:].isdigit()))
