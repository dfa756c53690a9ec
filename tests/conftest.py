"""Settings of every test: strict arrays, two devices, no network beyond loopback, and one cache for the session.

The strict options and the two devices hold in the process of pytest alone: the services under test are processes of
their own and run with the defaults that users have, because the options are part of a bundle's key. One option holds in
them too: programs are compiled quickly, except in the slow tests of cold starts and with `--optimized`.
"""

import atexit
import contextlib
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# For this process and for those that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Else Google's client describes a bucket in a thread of its own, at any moment, for traces.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
# Services under test serve four sequences at once and not sixteen: a quarter fewer programs to compile.
os.environ.setdefault("MAX_NUM_SEQS", "4")
os.environ["LOOPBACK_REFUSALS"] = tempfile.mkstemp(prefix="levserve-refusals-")[1]
atexit.register(Path(os.environ["LOOPBACK_REFUSALS"]).unlink, missing_ok=True)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent / "loopback"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
).rstrip(os.pathsep)

# Services under test find one another's bundles, so only the first of a kind compiles; never those of the machine.
# The workers of pytest-xdist share the cache of the process that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    session = tempfile.mkdtemp(prefix="levserve-tests-")
    os.environ["LOCAL_MODEL_CACHE"] = str(Path(session, "cache"))
    atexit.register(shutil.rmtree, session, ignore_errors=True)

pytest_plugins = ("tests.gcs", "tests.stored", "tests.served")


MAX_ID_CHARS = 100
# Fixtures that take long to make: pytest-xdist gives all tests of one to the same worker.
MADE_ONCE = (
    "executables",
    "scored_executables",
    "demo_service",
    "two_starts",
    "served",
    "keyed_service",
    "scripted_service",
)
MAX_GROWTH_BYTES = 250 * 2**20  # of a worker's memory, beyond which it drops the programs that it has compiled


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among what is imported, neither now nor in the tests: it stays for as long as they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config, items):
    """Group tests by the costly fixture that they share, or by their file if it has fixtures of its own."""
    if not config.pluginmanager.hasplugin("xdist"):  # its mark is unknown without it
        return
    for item in items:
        names = [name for name in MADE_ONCE if name in item.fixturenames]
        for name in names:
            parameter = item.callspec.params.get("model", "") if hasattr(item, "callspec") else ""
            item.add_marker(pytest.mark.xdist_group(f"{name} {getattr(parameter, '__name__', '')}".strip()))
        if not names and any(name in vars(item.module) for name in item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


class Memory:
    """The resident memory of this process, on Linux."""

    kept_bytes = 0  # when programs were last dropped

    @staticmethod
    def resident_bytes():
        pages = Path("/proc/self/statm")
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """Drop compiled programs once there are many more: XLA keeps them for as long as the process lives."""
    yield
    if "jax" in sys.modules and Memory.resident_bytes() > Memory.kept_bytes + MAX_GROWTH_BYTES:
        from service.device.heap import return_freed_memory

        sys.modules["jax"].clear_caches()
        gc.collect()
        return_freed_memory()
        Memory.kept_bytes = Memory.resident_bytes()


def pytest_make_parametrize_id(val, argname):
    """Name long texts by their length: an id is in the environment of every process that a test starts."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > MAX_ID_CHARS else None


def pytest_collection_finish(session):
    """Refuse to run tests that pytest-xdist has not grouped: each worker would make the costly fixtures again."""
    if getattr(session.config.option, "loadgroup", False):
        grouped = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
        ungrouped = [nodeid for nodeid in grouped if "@" not in nodeid]
        assert not ungrouped, f"this pytest-xdist does not group the tests of this pytest: {ungrouped[0]}"


def pytest_configure(config):
    """Make arrays strict, and refuse other machines from now on."""
    import jax
    from hypothesis import HealthCheck, settings

    import tests.loopback.sitecustomize  # noqa: F401

    # How long an example takes says more about the machine than about the code.
    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    # A change is judged by the same examples as the one before it; `make test-all` looks for new ones.
    settings.register_profile("same", settings.get_profile("random"), derandomize=True, database=None)
    settings.load_profile(config.getoption("--hypothesis-profile") or "same")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_num_cpu_devices", 2)
    if not config.getoption("--optimized"):
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # in the processes that tests start
        jax.config.update("jax_disable_most_optimizations", True)
    # What a test compiles in this process, no other one compiles again. With a bound on the size, JAX locks the folder.
    jax.config.update("jax_compilation_cache_max_size", 2**30)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_compilation_cache_dir", str(Path(os.environ["LOCAL_MODEL_CACHE"]).with_name("compiled")))


@pytest.fixture(scope="module")
def compiled_anew():
    """Take no executable that another test compiled: XLA cannot serialize one that it has read from JAX's cache."""
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", folder)
    reset_cache()


@pytest.fixture(scope="module", autouse=True)
def usual_niceness():
    """Take back a low priority that a test gave its own thread, which later tests and processes would inherit."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    if os.getpriority(os.PRIO_PROCESS, 0) != niceness:
        with contextlib.suppress(PermissionError):  # only root may
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


@pytest.fixture(autouse=True)
def no_network():
    """Fail a test that reached, or whose processes reached, for another machine; the refusal itself may be handled."""
    from tests.loopback.sitecustomize import REFUSALS

    num_known = REFUSALS.stat().st_size
    yield
    refused = REFUSALS.read_bytes()[num_known:].decode()
    assert not refused, f"the test reached for another machine:\n{refused}"


def pytest_addoption(parser):
    """`--optimized`; and for `pytest tests/smoke` the flags of `levserve smoke`, which name a deployed service."""
    help_text = "compile as for users, rather than quickly"
    parser.addoption("--optimized", action="store_true", help=help_text)
    group = parser.getgroup("deployed service")
    group.addoption("--url", help="test the service at this address")
    group.addoption("--model", help="the model that must be served")
    group.addoption("--api-key", help="a key of the service, or @FILE")
    group.addoption("--identity-token", help="a Google identity token, @FILE or auto")
    group.addoption("--audience", help="whom the automatic token is made out to")
    group.addoption("--patience", type=float, help="seconds of patience for a cold start")
