"""What Python and its libraries are told so that importing them does not do work that this service has no use for."""

import gc
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Source: CPython, the default of sys.setswitchinterval.
SWITCH_INTERVAL_S = 0.005
START_SWITCH_INTERVAL_S = 0.0005


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
def without_vain_searches() -> Iterator[None]:
    """Let jax, imported meanwhile, do without what it finds nothing in here: a fourth of its import.

    It reads what every installed package says of itself, in search of AMD's plugin. And for its own cache of
    compilations it takes `etils`, along with all of `unittest`, and `filelock`, if those are installed.
    """
    is_cached = "JAX_COMPILATION_CACHE_DIR" in os.environ
    distributions = importlib.metadata.distributions
    hidden = [] if is_cached else [name for name in ("etils", "filelock") if name not in sys.modules]
    importlib.metadata.distributions = lambda **_: iter(())
    sys.modules |= dict.fromkeys(hidden)  # None: as if it were not installed
    try:
        yield
    finally:
        importlib.metadata.distributions = distributions
        for name in hidden:
            del sys.modules[name]


@contextmanager
def schemas_on_demand() -> Iterator[None]:
    """Let the pydantic models that are defined meanwhile build their schemas when they are first used.

    FastAPI defines OpenAPI's documents as forty models, which a service without such documents never uses; to build
    them is a fourth of its import.
    """
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True  # every model without a word of its own inherits this
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]
