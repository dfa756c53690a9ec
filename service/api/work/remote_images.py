"""Images that a request names by an address: fetched over https, only from public addresses.

A client must not reach through this service what it cannot reach itself. So an address is read once, by one strict
pattern; every address of its host is checked, and the connection is made to one that was; a redirect is refused; no
proxy, cookie or credential takes part; and the answer is bounded in bytes and time.

Source: https://cheatsheetseries.owasp.org/cheatsheets/Server_Side_Request_Forgery_Prevention_Cheat_Sheet.html
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property

import h11

from service.errors import InvalidParameter

PORT = 443
MAX_URL_CHARS = 2048
READ_BYTES = 64 * 1024
_IPV4 = 4
# A name of several labels, the last of which is no number: an address in any notation is none.
_URL = re.compile(
    r"https://((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)(?::443)?(/[!-\[\]-~]*)?",
    re.IGNORECASE,
)
# Of IPv6 all that is given to networks; what is none of it leads elsewhere, or nowhere.
_UNICAST = ipaddress.ip_network("2000::/3")
# Within it, and within IPv4, what has a meaning of its own, such as addresses that stand for IPv4 ones (6to4, Teredo).
# Source: https://www.iana.org/assignments/iana-ipv6-special-registry, .../iana-ipv4-special-registry
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        (
            *("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
            *("192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24"),
        ),
    )
)


async def resolve(host: str) -> Sequence[str]:
    """Return every address of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    is_special = any(parsed in network for network in _SPECIAL if network.version == parsed.version)
    is_unicast = parsed.version == _IPV4 or parsed in _UNICAST
    return parsed.is_global and is_unicast and not parsed.is_multicast and not is_special


class RemoteImages:
    """Fetches images."""

    def __init__(
        self,
        *,
        timeout_s: float,
        max_bytes: int,
        resolve: Callable[[str], Awaitable[Sequence[str]]] = resolve,
        is_allowed: Callable[[str], bool] = is_public,
        port: int = PORT,
        trusted: str | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            timeout_s: for one image, from its name to its last byte.
            max_bytes: the largest one.
            resolve: returns every address of a host.
            is_allowed: whether an address may be connected to.
            port: that is connected to.
            trusted: the file of the authorities whose certificates are accepted; None for the system's.
        """
        self._timeout_s, self._max_bytes, self._port, self._trusted = timeout_s, max_bytes, port, trusted
        self._resolve, self._is_allowed = resolve, is_allowed

    async def fetch(self, url: str, param: str, arrived: Callable[[int], None] = lambda num_bytes: None) -> bytes:
        """Return the file at an address.

        Args:
            url: what the client sent.
            param: the request field that an error names.
            arrived: is called with the bytes so far, as they arrive; what it raises is raised.

        Raises:
            InvalidParameter: it is not an address that is fetched, or nothing was answered that is an image.
        """
        match = _URL.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
        if match is None:
            raise _refusal(param, "is not of the form 'https://host/path', without a user, a port or a fragment")
        host, target = match[1].lower(), match[2] or "/"
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(host, target, param, arrived)
        except TimeoutError:
            raise _refusal(param, f"took longer than {self._timeout_s:g} seconds") from None
        except (OSError, h11.ProtocolError, ssl.SSLError):  # whose messages would say what is reachable
            raise _refusal(param, "could not be fetched") from None

    async def _fetch(self, host: str, target: str, param: str, arrived: Callable[[int], None]) -> bytes:
        addresses = await self._resolve(host)
        # Defends against T33.
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise _refusal(param, "is at an address that is not public")
        reader, writer = await asyncio.open_connection(
            addresses[0], self._port, ssl=self._context, server_hostname=host, limit=READ_BYTES
        )
        try:
            connection = h11.Connection(h11.CLIENT)
            headers = [("Host", host), ("Accept", "image/*"), ("Accept-Encoding", "identity"), ("Connection", "close")]
            request = h11.Request(method="GET", target=target, headers=headers)
            writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
            await writer.drain()
            return await self._read(connection, reader, param, arrived)
        finally:
            writer.transport.abort()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _read(
        self, connection: h11.Connection, reader: asyncio.StreamReader, param: str, arrived: Callable[[int], None]
    ) -> bytes:
        content = bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                self._check(event, param)
            elif isinstance(event, h11.Data):
                content += event.data
                if len(content) > self._max_bytes:
                    raise self._too_large(param)
                arrived(len(content))
            elif not isinstance(event, h11.InformationalResponse):
                return bytes(content)

    def _check(self, response: h11.Response, param: str) -> None:
        headers = {bytes(name): bytes(value) for name, value in response.headers}
        if response.status_code != 200:
            what = "a redirect, which is not followed" if 300 <= response.status_code < 400 else "no image"
            raise _refusal(param, f"was answered with HTTP {response.status_code}, {what}")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise _refusal(param, "came compressed")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_bytes:
            raise self._too_large(param)

    def _too_large(self, param: str) -> InvalidParameter:
        return _refusal(param, f"has more than {self._max_bytes:,} bytes")

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._trusted)


def _refusal(param: str, reason: str) -> InvalidParameter:
    return InvalidParameter(f"The image in '{param}' {reason}. Send the image itself, as a data URL.", param=param)
