"""`levserve smoke URL`: flags, output and exit code. Other modules are imported only when it runs."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.smoke.client import Credentials

GREEN, RED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130
START_PATIENCE_S = 300.0
LARGEST_NUMBER = 1e6  # of seconds or requests; a larger number is a mistake

DESCRIPTION = """\
Test whether a deployed service can take traffic: wait until it is ready, then check models, errors, keys, a chat, a
stream and a completion, and measure latencies. Exit code 0: all green; 1: a check failed; 2: no check has run."""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "smoke", help="test a running service from outside", description=DESCRIPTION, argument_default=None
    )
    parser.add_argument("url", type=_url, metavar="URL", help="the address, such as https://levserve-abc-uc.a.run.app")
    parser.add_argument("--model", metavar="NAME", help="the model that must be served; default: the first of the list")
    parser.add_argument("--api-key", type=_secret, metavar="KEY", help="a key of the service, or @FILE with one")
    parser.add_argument(
        "--identity-token",
        type=_secret,
        metavar="TOKEN",
        help="a Google identity token, @FILE with one, or auto: from the metadata server or gcloud",
    )
    parser.add_argument("--audience", metavar="URL", help="the audience of the automatic token; default: the service")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="patience for a cold start, default: 300; if given, also for an address where nothing listens yet",
    )
    parser.add_argument(
        "--request-timeout", type=_seconds, default=120.0, metavar="S", help="patience for one answer; default: 120"
    )
    parser.add_argument(
        "--requests", type=_count, default=5, metavar="N", help="how many requests the latencies are of; default: 5"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")


def run(arguments: argparse.Namespace) -> int:
    """Run the checks, print their outcomes, and return the exit code."""
    from service.smoke.failures import NoIdentityToken

    try:
        credentials = _credentials(arguments)
    except NoIdentityToken as error:
        print(f"levserve smoke: {error}", file=sys.stderr)
        return NOT_RUN
    try:
        return _run(arguments, credentials)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: argparse.Namespace, credentials: "Credentials") -> int:
    import json
    import time

    from service.smoke.checks import ALL_CHECKS
    from service.smoke.client import Client
    from service.smoke.session import Session, report_of, run_checks

    began_s = time.monotonic()
    with Client(arguments.url, credentials, request_timeout_s=arguments.request_timeout) as client:
        session = Session(
            client,
            ready_timeout_s=arguments.timeout or START_PATIENCE_S,
            waits_for_port=arguments.timeout is not None,
            num_requests=arguments.requests,
            requested_model=arguments.model,
            report=lambda news: print(news, file=sys.stderr, flush=True),
        )
        if not arguments.json:
            print(f"levserve smoke {arguments.url}", flush=True)
        for outcome in run_checks(session, ALL_CHECKS):
            if not arguments.json:
                print(outcome.text(), flush=True)
    report = report_of(session, time.monotonic() - began_s)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else report.summary(), flush=True)
    return GREEN if report.is_green else RED


def _credentials(arguments: argparse.Namespace) -> "Credentials":
    from service.smoke.client import Credentials
    from service.smoke.identity import audience_of, identity_token

    token = arguments.identity_token
    if token == "auto":
        token = identity_token(arguments.audience or audience_of(arguments.url))
    return Credentials(arguments.api_key, token)


def _url(text: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write http://HOST:PORT or https://HOST")
    return text.rstrip("/")


def _secret(text: str) -> str:
    """Parse a secret given directly or as @FILE, which hides it from the process list."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text().strip()
        except OSError as error:
            raise argparse.ArgumentTypeError(f"cannot read {text[1:]}: {error.strerror}") from None
    if not text or not text.isascii() or not text.isprintable():
        raise argparse.ArgumentTypeError("a key or token is printable ASCII, and not empty")
    return text


def _seconds(text: str) -> float:
    return _above_zero(text, float)


def _count(text: str) -> int:
    return _above_zero(text, int)


def _above_zero[Number: (int, float)](text: str, kind: type[Number]) -> Number:
    try:
        number = kind(text)
    except ValueError:
        number = kind(0)
    if not 0 < number < LARGEST_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
