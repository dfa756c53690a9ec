"""Threads of a start import at the same time, so no import of ours may need what another thread is in the middle of."""

import subprocess
import sys

import pytest

# One thread imports jax and is held up at its beginning; the other imports a module of ours meanwhile.
SIDE_BY_SIDE = """
import importlib, importlib.util, sys, threading

has_begun = threading.Event()
other = threading.Thread(target=lambda: has_begun.wait() and import_named(sys.argv[1]))
failures = []

class SlowFinder:
    def find_spec(self, name, path=None, target=None):
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_slowly(module):
            has_begun.set()
            other.join(0.5)
            execute(module)

        spec.loader.exec_module = execute_slowly
        return spec

def import_named(name):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failures.append(f"{name}: {error!r}")

sys.meta_path.insert(0, SlowFinder())
other.start()
import_named("jax")
other.join()
assert has_begun.is_set()
print("; ".join(failures))
"""


@pytest.mark.parametrize("name", ["service.compile.counter", "service.checkpoint.load", "service.start.prefetch"])
def test_a_module_can_be_imported_while_another_thread_imports_jax(name):
    done = subprocess.run([sys.executable, "-c", SIDE_BY_SIDE, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
