"""Tests run on a changed copy of the tree, each time in a fork of this process.

Libraries are imported before the fork and the service after it, so that a trial takes little more than its tests.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

# Imported once for all trials. None of them starts a thread that a fork would lose.
LIBRARIES = (
    "jax.numpy", "haliax", "equinox", "numpy", "hypothesis", "jaxtyping", "httpx", "fastapi.testclient", "openai",
    "google.cloud.storage", "huggingface_hub", "tokenizers", "jinja2.sandbox", "tenacity", "uvicorn",
)  # fmt: skip
# Without what pyproject.toml adds: types are not checked at run time, so that a test must notice what is wrong.
PYTEST_OPTIONS = (
    "-q", "--no-header", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider", "--hypothesis-seed=0",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
COPIED = ("service", "tests", "pyproject.toml")
NUM_FIRST_FILES = 2  # of tests, whose collection the others wait for


def import_libraries() -> None:
    """Import what tests need besides the service, under the variables that `tests/conftest.py` sets."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"}
    for library in LIBRARIES:
        importlib.import_module(library)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    gc.collect()
    gc.freeze()  # no trial collects what they made


class Tree:
    """A copy of the repository, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "tree"
        self._temporary = folder / "temporary"
        self._log = folder / "log"
        self.failure = folder / "failure"  # the name of the test that failed in the last trial
        self.root.mkdir(parents=True)
        for path in Path().glob("[!.]*"):
            if path.name not in COPIED:
                (self.root / path.name).symlink_to(path.absolute())
            elif path.is_dir():
                shutil.copytree(path, self.root / path.name)
            else:
                shutil.copy2(path, self.root / path.name)

    @property
    def output(self) -> str:
        """What the last trial printed."""
        return self._log.read_text(errors="replace")

    def change(self, path: str, source: str) -> None:
        """Put another text in a file's place."""
        (self.root / path).rename(self.folder / "unchanged")
        (self.root / path).write_text(source)

    def restore(self, path: str) -> None:
        """Undo `change`, time stamp included: compiled files go by it."""
        (self.folder / "unchanged").rename(self.root / path)

    def start(self, action: Callable[[], int], *, writes_bytecode: bool = False) -> int:
        """Fork a process that does something inside the tree, and return its id."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        self.failure.unlink(missing_ok=True)
        pid = os.fork()
        if pid:
            return pid
        status = 70
        try:
            os.setsid()
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.environ |= {"TMPDIR": str(self._temporary), "PYTHONPATH": str(self.root)}
            here = str(Path.cwd())
            os.chdir(self.root)
            sys.path[:] = [str(self.root), *(entry for entry in sys.path if entry not in ("", here))]
            sys.dont_write_bytecode = not writes_bytecode
            if not writes_bytecode:
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            status = action()
        except BaseException:  # whatever it is, this process must not continue as its parent
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)


def reap(pid: int, *, until: float) -> int | None:
    """Return a trial's exit status; None while it runs. After `until`, and when it has ended, nothing of it is left."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended and time.monotonic() < until:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
        return -signal.SIGALRM
    return os.waitstatus_to_exitcode(status)


def run_tests(tests: Mapping[str, float], failure: Path) -> int:
    """Run tests in this order, until the first failure, which goes to a file by name; return pytest's exit status.

    With each test comes how long it may take, in seconds.

    The files of the first tests are collected and run before any other file is: most trials end there.
    """
    files = list(dict.fromkeys(_file_of(test) for test in tests))
    for part in (files[:NUM_FIRST_FILES], files[NUM_FIRST_FILES:]):
        of_part = {test: limit_s for test, limit_s in tests.items() if _file_of(test) in part}
        status = int(pytest.main([*PYTEST_OPTIONS, "-x", *part], plugins=[_InOrder(of_part, failure)])) if part else 0
        if status:
            return status
    return 0


def _file_of(test: str) -> str:
    return test.partition("::")[0]


class _InOrder:
    def __init__(self, tests: Mapping[str, float], failure: Path) -> None:
        self._tests = tests
        self._failure = failure

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failure.write_text(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = in_order(items, self._tests)


def in_order(items: Iterable[pytest.Item], tests: Mapping[str, float]) -> list[pytest.Item]:
    """Return the items of tests in the order of these, each with its limit in seconds."""
    of_name = {item.nodeid: item for item in items}
    for name in tests.keys() & of_name.keys():
        of_name[name].add_marker(pytest.mark.timeout(tests[name]))
    return [of_name[name] for name in tests if name in of_name]
