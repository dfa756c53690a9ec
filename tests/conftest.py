"""What all tests share: strict arrays, no network beyond loopback, and one cache that ends with the session."""

import atexit
import os
import shutil
import tempfile

# Before jax is imported anywhere: CPU, and two devices so that sharding is seen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Services under test find one another's bundles, so only the first of a kind compiles; never those of the machine.
os.environ["LOCAL_MODEL_CACHE"] = tempfile.mkdtemp(prefix="levserve-tests-")
atexit.register(shutil.rmtree, os.environ["LOCAL_MODEL_CACHE"], ignore_errors=True)


pytest_plugins = ("tests.gcs", "tests.stored", "tests.served")


def pytest_addoption(parser):
    """Where a deployed service is, for `pytest tests/smoke`; the same flags as those of `levserve smoke`."""
    group = parser.getgroup("deployed service")
    group.addoption("--url", help="test the service at this address")
    group.addoption("--model", help="the model that must be served")
    group.addoption("--api-key", help="a key of the service, or @FILE")
    group.addoption("--identity-token", help="a Google identity token, @FILE or auto")
    group.addoption("--audience", help="whom the automatic token is made out to")
    group.addoption("--patience", type=float, help="seconds of patience for a cold start")
