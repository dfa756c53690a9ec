"""What all tests share: strict arrays and no network beyond loopback."""

import os

# Before jax is imported anywhere: CPU, and two devices so that sharding is seen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_addoption(parser):
    """Where a deployed service is, for `pytest tests/smoke`; the same flags as those of `levserve smoke`."""
    group = parser.getgroup("deployed service")
    group.addoption("--url", help="test the service at this address")
    group.addoption("--model", help="the model that must be served")
    group.addoption("--api-key", help="a key of the service, or @FILE")
    group.addoption("--identity-token", help="a Google identity token, @FILE or auto")
    group.addoption("--audience", help="whom the automatic token is made out to")
    group.addoption("--patience", type=float, help="seconds of patience for a cold start")
