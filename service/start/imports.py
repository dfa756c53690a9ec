"""What Python and its libraries are told so that importing them does not do work that this service has no use for."""

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from service.start.deferred_modules import put_off

# Source: CPython, the default of sys.setswitchinterval.
SWITCH_INTERVAL_S = 0.005
START_SWITCH_INTERVAL_S = 0.0005

# What takes an import of jax some milliseconds, by itself or with what it imports in turn: its cache of compilations
# (`filelock`, `etils` with all of `unittest`), kernels for TPUs and GPUs, clusters, public names. Its modules import
# one another in circles, so not any may wait: with `jax._src.numpy.fft` among these there is no import of jax.
UNUSED_PARTS_OF_JAX = frozenset(
    {
        "jax._src.clusters",
        "jax._src.compilation_cache",
        "jax._src.lax.linalg",
        "jax._src.numpy.linalg",
        "jax._src.path",
        "jax._src.pickle_util",
        "jax._src.tpu_info",
        "jax.debug",
        "jax.experimental.compilation_cache.compilation_cache",
        "jax.export",
        "jax.image",
        "jax.lax",
        "jax.nn",
        "jax.numpy",
        "jax.random",
        "jax.scipy",
        "jaxlib.mosaic.python.mosaic_gpu",
        "jaxlib.mosaic.python.tpu",
    }
)


def prepare() -> None:
    """Prepare the process; to be called before anything else is imported."""
    # What is imported stays, so looking for garbage in it only delays the start; `settle` switches it on again.
    gc.disable()
    # Who brings weights needs Python's lock for a moment only, and else waits for it longer than the moment takes.
    sys.setswitchinterval(START_SWITCH_INTERVAL_S)
    # Else pydantic reads what every installed package says of itself, in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Else OpenBLAS, which comes with numpy, begins threads that spin; numpy multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def settle() -> None:
    """End what `prepare` asked for, once everything is imported and loaded."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()  # all of it stays; the collector need not look at it again
    gc.enable()


@contextmanager
def as_needed_to_run() -> Iterator[None]:
    """Let jax, imported meanwhile, do without what only tracing and compiling need: a third of its import.

    It reads what every installed package says of itself, in search of AMD's plugin; nothing is found here. Parts of it
    that a program does not need once it is compiled are loaded when they are first used.
    """
    distributions = importlib.metadata.distributions
    importlib.metadata.distributions = lambda **_: iter(())
    try:
        with put_off(UNUSED_PARTS_OF_JAX):
            yield
    finally:
        importlib.metadata.distributions = distributions


class _NamesOnly(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def without_documents() -> Iterator[None]:
    """Let FastAPI, imported meanwhile, do without the forty models of OpenAPI's documents, two fifths of its import.

    A service without such documents makes nothing of them; until they are imported again, their names are all there is.
    """
    name = "fastapi.openapi.models"
    sys.modules[name] = _NamesOnly(name)
    try:
        yield
    finally:
        del sys.modules[name]
