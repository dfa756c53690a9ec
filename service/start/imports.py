"""Process-wide tweaks that shorten imports.

`LEVSERVE_IMPORT_TWEAKS=off` in the environment turns all of them off; a start is then slower and otherwise the same.
"""

import gc
import importlib.metadata
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SWITCH = "LEVSERVE_IMPORT_TWEAKS"

# Source: CPython, the default of sys.setswitchinterval.
SWITCH_INTERVAL_S = 0.005
START_SWITCH_INTERVAL_S = 0.0005
# Objects made since the last collection, and collections of each generation until one of the next. Python's own numbers
# make a request of many objects take twice as long, and hold up all threads for it.
COLLECT_AFTER = (5000, 20, 20)


class _Freeze:
    """Takes all objects out of the collector's sight, and knows when it last did."""

    at_s: float | None = None  # on the clock of `time.monotonic`

    def __call__(self) -> None:
        gc.freeze()
        self.at_s = time.monotonic()


_freeze = _Freeze()

# Modules that take an import of jax some milliseconds, by themselves or by what they import: its compilation cache
# (`filelock`, `etils` with all of `unittest`), kernels for TPUs and GPUs, clusters, public names. jax's modules import
# one another in circles, so not every one can be deferred: `import jax` fails with `jax._src.numpy.fft` in this list.
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


def has_tweaks() -> bool:
    """Return whether the tweaks are on; reads the environment because the first tweak precedes the settings."""
    return os.environ.get(SWITCH, "on").strip().lower() != "off"


def begin_quick_imports() -> None:
    """Prepare the process for its imports; call this before importing anything else."""
    if not has_tweaks():
        return
    # Imported modules stay, so collecting garbage among them only delays the start.
    gc.disable()
    # Threads that read weights need the GIL for a moment at a time; the default interval makes them wait longer for it.
    sys.setswitchinterval(START_SWITCH_INTERVAL_S)
    # Otherwise pydantic reads the metadata of every installed package in search of plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Otherwise OpenBLAS, which numpy brings, starts threads that spin; numpy multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def end_quick_imports() -> None:
    """Undo `begin_quick_imports` once everything is imported and loaded; in a later start there is nothing to undo."""
    if not has_tweaks() or _freeze.at_s is not None:
        return
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _freeze()  # everything imported stays, so the collector need not look at it again
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def collect_unloaded(begun_s: float) -> None:
    """Free what an unloaded model leaves in cycles of references, such as its weights.

    A model that was loaded before the last freeze is frozen with everything else, and finding its cycles means looking
    at all objects, with the GIL held for up to 0.25 s.

    Args:
        begun_s: when its load began, on the clock of `time.monotonic`.
    """
    if _freeze.at_s is None or begun_s > _freeze.at_s:
        gc.collect()
        return
    gc.unfreeze()
    gc.collect()
    _freeze()


@contextmanager
def quick_jax_import() -> Iterator[None]:
    """Defer the parts of jax that only tracing and compiling need: a third of its import.

    jax also reads the metadata of every installed package in search of AMD's plugin; inside this block it finds none.
    """
    if not has_tweaks():
        yield
        return
    distributions = importlib.metadata.distributions
    importlib.metadata.distributions = lambda **_: iter(())
    try:
        with deferred(UNUSED_PARTS_OF_JAX):
            yield
    finally:
        importlib.metadata.distributions = distributions


@contextmanager
def deferred(names: Collection[str]) -> Iterator[None]:
    """Defer modules of these names that are imported inside this block until an attribute of theirs is read.

    `importlib.util.LazyLoader` does not serve here: a second `import` of a module is enough to run it, and before
    Python 3.12.2 two threads that read at once may find it half run.
    """
    sys.meta_path.insert(0, finder := _Finder(names))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_deferred() -> None:
    """Run every module that is still deferred, for a process that is about to need most of them on several threads."""
    for module in list(sys.modules.values()):
        if isinstance(module, _DeferredModule):
            module.__deferred__.run(module)


class _DeferredModule(ModuleType):
    """An imported module that has not run."""

    __deferred__: "_DeferredLoader"

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for missing attributes; those that the import system reads are present.
        self.__deferred__.run(self)
        return ModuleType.__getattribute__(self, name)


class _DeferredLoader(Loader):
    """Wraps a loader and runs its module later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._has_begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave creation to the wrapped loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Mark the module as deferred instead of running it."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__dict__["__deferred__"] = self
        module.__class__ = _DeferredModule

    def run(self, module: ModuleType) -> None:
        """Run the module, or wait for the thread that does; modules of an import circle see what has been defined."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._has_begun = False  # the next reader gets the same error
                raise
            module.__class__ = ModuleType


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Python's own spec of a deferred module with its loader wrapped; None for any other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader)
        return spec
