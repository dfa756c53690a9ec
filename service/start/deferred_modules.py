"""Modules that are imported without being run; they run when something of them is asked for.

As `importlib.util.LazyLoader`, which is not for us: a second `import` of a module is enough for it to run one, and
before Python 3.12.2 two threads that ask at once may find it half run.
"""

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def put_off(names: Collection[str]) -> Iterator[None]:
    """Let modules of these names, where they are imported meanwhile, run when something of them is asked for."""
    sys.meta_path.insert(0, finder := _Finder(names))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_put_off() -> None:
    """Run what still waits; for a process that is about to need most of it, on several threads."""
    for module in list(sys.modules.values()):
        if isinstance(module, _Waiting):
            module.__later__.run(module)


class _Waiting(ModuleType):
    """A module that has not run."""

    __later__: "_Later"

    def __getattr__(self, name: str) -> Any:
        # Python comes here only for what is not there; what the import system asks for is.
        self.__later__.run(self)
        return ModuleType.__getattribute__(self, name)


class _Later(Loader):
    """Does all that another loader does, but late."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._has_begun = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the other loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Put it off."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__dict__["__later__"] = self
        module.__class__ = _Waiting

    def run(self, module: ModuleType) -> None:
        """Run the module, or wait for the thread that does; what it imports in a circle sees as much as there is."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._has_begun = False  # whoever asks next is told the same
                raise
            module.__class__ = ModuleType


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Python's own spec of those modules, with a late loader."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec
