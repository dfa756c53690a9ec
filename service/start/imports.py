"""Process-wide tweaks that speed up imports.

`LEVSERVE_IMPORT_TWEAKS=off` in the environment disables them; a start is then slower but otherwise the same.
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

from service.start.quick_dataclasses import make_dataclasses_quickly

SWITCH = "LEVSERVE_IMPORT_TWEAKS"

# Source: CPython, the default of sys.setswitchinterval.
SWITCH_INTERVAL_S = 0.005
START_SWITCH_INTERVAL_S = 0.0005
# Thresholds of the garbage collector. With Python's defaults, a request that allocates many objects takes twice as long
# and blocks all threads meanwhile.
COLLECT_AFTER = (5000, 20, 20)


class _Freeze:
    """Freezes the garbage collector's current objects and remembers when."""

    at_s: float | None = None  # on the clock of `time.monotonic`

    def __call__(self) -> None:
        gc.freeze()
        self.at_s = time.monotonic()


_freeze = _Freeze()

# Modules that add milliseconds to an import of jax, directly or through their imports: its compilation cache
# (`filelock`, `etils` with all of `unittest`), kernels for TPUs and GPUs, clusters, public names. jax's modules import
# one another in cycles, so not all can be deferred: `import jax` fails with `jax._src.numpy.fft` in this list.
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
# Modules of google.auth for key files and identity tokens, with all of `cryptography`: 40 of the 90 ms that a token of
# a metadata server would take of a start.
UNUSED_PARTS_OF_GOOGLE_AUTH = frozenset({"google.auth.iam", "google.auth.jwt", "google.oauth2.service_account"})


def has_tweaks() -> bool:
    """Return whether the tweaks are enabled; reads the environment because the first tweak precedes the settings."""
    return os.environ.get(SWITCH, "on").strip().lower() != "off"


def begin_quick_imports() -> None:
    """Prepare the process for its imports; call this before importing anything else."""
    if not has_tweaks():
        return
    # Imported modules stay alive, so collecting garbage among them only delays the start.
    gc.disable()
    # Threads that read weights need the GIL often but briefly; the default interval makes them wait too long.
    sys.setswitchinterval(START_SWITCH_INTERVAL_S)
    # Otherwise pydantic reads the metadata of every installed package to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Otherwise numpy's OpenBLAS starts spinning threads, although numpy multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    make_dataclasses_quickly()


def end_quick_imports() -> None:
    """Give collector and threads their usual ways once everything is loaded; does nothing in later starts."""
    if not has_tweaks() or _freeze.at_s is not None:
        return
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _freeze()  # imported objects stay alive, so the collector can skip them
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


def collect_unloaded(begun_s: float) -> None:
    """Free the reference cycles of an unloaded model, including its weights.

    A model loaded before the last freeze is frozen with everything else; finding its cycles means traversing all
    objects with the GIL held, for up to 0.25 s.

    Args:
        begun_s: when the model's load began, on the clock of `time.monotonic`.
    """
    if _freeze.at_s is None or begun_s > _freeze.at_s:
        gc.collect()
        return
    gc.unfreeze()
    gc.collect()
    _freeze()


@contextmanager
def quick_jax_import() -> Iterator[None]:
    """Defer the parts of jax that only tracing and compiling need.

    jax also reads the metadata of every installed package to find AMD's plugin; inside this block it finds none.
    Without the first, a warm start of the demo model needs 1.12 of the processor time until it answers, without the
    second 1.16 (medians of six starts each, in turns, on two processors).
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
def quick_google_import() -> Iterator[None]:
    """Defer the parts of google.auth that credentials of a metadata server do not need."""
    with deferred(UNUSED_PARTS_OF_GOOGLE_AUTH if has_tweaks() else ()):
        yield


@contextmanager
def quick_fastapi_import() -> Iterator[None]:
    """Let classes of pydantic build their schemas at first use: FastAPI has 37 for a document that few ask for."""
    if not has_tweaks():
        yield
        return
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]


@contextmanager
def deferred(names: Collection[str]) -> Iterator[None]:
    """Defer the execution of modules imported inside this block until one of their attributes is read.

    `importlib.util.LazyLoader` is not sufficient: a second `import` of a module already runs it, and before Python
    3.12.2 concurrent threads may see it half initialized.
    """
    sys.meta_path.insert(0, finder := _Finder(names))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_deferred() -> None:
    """Run all deferred modules, before most of them are needed on several threads."""
    for module in list(sys.modules.values()):
        if isinstance(module, _DeferredModule):
            module.__deferred__.run(module)


class _DeferredModule(ModuleType):
    """An imported module that has not been executed yet."""

    __deferred__: "_DeferredLoader"

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for missing attributes; the ones that the import system reads are present.
        self.__deferred__.run(self)
        return ModuleType.__getattribute__(self, name)


class _DeferredLoader(Loader):
    """Wraps a loader to execute its module later."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._has_begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Mark the module as deferred instead of running it."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__dict__["__deferred__"] = self
        module.__class__ = _DeferredModule

    def run(self, module: ModuleType) -> None:
        """Execute the module, or wait for the thread that does; import cycles see the names defined so far."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._has_begun = False  # the next access raises the same error
                raise
            module.__class__ = ModuleType


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a deferred module with its loader wrapped; None for any other module."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader)
        return spec
