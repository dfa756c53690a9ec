"""Places among keys that compete for them: shares by weight, which hold only while another key was refused."""

import contextlib
import json

import pytest

from service.api.http.keys import ApiKey, ApiKeys
from service.api.http.request_queue import Caps
from service.api.http.shares import GRACE_S, MAX_CLAIMS, Shares
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, Service
from tests.sockets import connected, read_to_end, refusal, served, wait_until

BUSY, OTHER, HEAVY = ApiKey("busy", "sk-1"), ApiKey("other", "sk-2"), ApiKey("heavy", "sk-3", weight=2.0)
BODY = json.dumps({"model": MODEL, "prompt": "Once"}).encode()
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\nAuthorization: Bearer {{}}\r\n\r\n"
)
GO_ON = b"HTTP/1.1 100 "  # a place was found, and the body is read


class Crowd:
    """Clients of several keys, whose requests hold their places until they leave."""

    def __init__(self, server):
        self._server = server
        self._held = {key: [] for key in (BUSY, OTHER, HEAVY)}

    def num_let_in(self, key, times):
        """Return how many of some requests of a key find a place."""
        return sum(self._is_let_in(key) for _ in range(times))

    def num_held(self, key):
        """Return how many requests of a key hold a place."""
        return len(self._held[key])

    def leave(self, key, times=1):
        """End the oldest requests of a key."""
        for _ in range(times):
            self._held[key].pop(0).close()
            wait_until(lambda: len(self._server.server_state.tasks) == sum(map(len, self._held.values())))

    def _is_let_in(self, key):
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(connected(self._server))
            client.sendall(HEAD.format(key.secret).encode())
            first = client.recv(65536)
            if first.startswith(GO_ON):
                self._held[key].append(stack.pop_all())
                return True
            status, error = refusal(first + read_to_end(client))
            assert (status, error["code"]) in {(429, "server_overloaded"), (429, "body_bytes_full")}
            return False


@contextlib.contextmanager
def crowd(**caps):
    service = Service(keys=ApiKeys([BUSY, OTHER, HEAVY]), caps=Caps(**caps))
    with served(service.app, Connection) as server:
        clients = Crowd(server)
        yield clients
        for key in (BUSY, OTHER, HEAVY):  # else the server waits for them
            clients.leave(key, clients.num_held(key))


@pytest.mark.parametrize(
    "caps", [{"max_requests": 4}, {"max_open_body_bytes": 4 * len(BODY)}], ids=["requests", "bytes"]
)
def test_a_key_that_was_refused_below_its_share_finds_the_next_places(caps):
    with crowd(**caps) as clients:
        assert clients.num_let_in(BUSY, 5) == 4  # without others, one key may have everything
        assert clients.num_let_in(OTHER, 2) == 0
        clients.leave(BUSY)
        assert clients.num_let_in(BUSY, 2) == 0
        assert clients.num_let_in(OTHER, 2) == 1
        clients.leave(BUSY)
        assert clients.num_let_in(BUSY, 1) == 0
        assert clients.num_let_in(OTHER, 2) == 1
        clients.leave(BUSY)  # which is now the one that was refused below its share
        assert (clients.num_let_in(OTHER, 1), clients.num_let_in(BUSY, 1)) == (0, 1)


def test_places_are_shared_by_weight():
    with crowd(max_requests=3) as clients:
        assert clients.num_let_in(BUSY, 3) == 3
        assert clients.num_let_in(HEAVY, 3) == 0
        for _ in range(2):
            clients.leave(BUSY)
            assert (clients.num_let_in(BUSY, 1), clients.num_let_in(HEAVY, 1)) == (0, 1)
        clients.leave(BUSY)
        assert (clients.num_let_in(HEAVY, 1), clients.num_let_in(BUSY, 1)) == (0, 1)


def test_a_claim_lasts_until_its_client_should_have_come_again():
    shares, held, weights = Shares(), {"a": 8}, {"a": 1.0, "b": 1.0}
    shares.claim("b", 1, end_s=10.0)
    assert shares.reserved("a", held, weights, 8, now_s=10.0) == 1
    assert shares.reserved("a", held, weights, 8, now_s=10.0 + GRACE_S) == 0


def test_claims_are_bounded_by_the_share_and_in_number():
    shares, weights = Shares(), {"a": 1.0, "b": 3.0}
    for _ in range(10 * MAX_CLAIMS):
        shares.claim("b", 1, end_s=10.0)
    assert shares.reserved("a", {"a": 8}, weights, 8, now_s=0.0) == 6
    assert shares.reserved("a", {"a": 10_000}, weights, 10_000, now_s=0.0) == MAX_CLAIMS
    assert shares.reserved("a", {"a": 1}, weights, 8, now_s=0.0) == 0  # it is below its own share
