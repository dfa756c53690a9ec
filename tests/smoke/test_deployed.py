"""A deployed service, check by check: `pytest tests/smoke --url URL`. Not collected without `--url`."""

import contextlib
import io
import json

import pytest

from service.cli import build_parser
from service.smoke.checks import ALL_CHECKS
from service.smoke.command import run

# A cold start may take half an hour.
pytestmark = [pytest.mark.deployed, pytest.mark.timeout(0)]


@pytest.fixture(scope="session")
def outcomes(pytestconfig, flags):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run(build_parser().parse_args(["smoke", pytestconfig.getoption("--url"), "--json", *flags]))
    assert printed.getvalue(), "nothing was tested"
    return {check["name"]: check for check in json.loads(printed.getvalue())["checks"]}


@pytest.mark.parametrize("name", [check.name for check in ALL_CHECKS])
def test_deployed(outcomes, name):
    outcome = outcomes.get(name)
    if outcome is None:
        pytest.skip("it is a check of another kind of model")
    if outcome["status"] == "skipped" and not outcome["detail"].startswith("needs "):
        pytest.skip(outcome["detail"])
    assert outcome["status"] == "passed", json.dumps(outcome, indent=2)
