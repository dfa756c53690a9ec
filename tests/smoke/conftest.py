"""Tests of a deployed service run only where `--url` names one, and there the tests of `levserve smoke` do not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    is_deployed = config.getoption("--url") is not None
    own = [item for item in items if str(item.path).startswith(f"{HERE}/")]
    left_out = {item for item in own if (item.get_closest_marker("deployed") is not None) != is_deployed}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def flags(pytestconfig) -> list[str]:
    """The flags of `levserve smoke` that were given to pytest."""
    names = ("--model", "--api-key", "--identity-token", "--audience")
    given = {name: pytestconfig.getoption(name) for name in names} | {"--timeout": pytestconfig.getoption("--patience")}
    return [f"{name}={value}" for name, value in given.items() if value is not None]
