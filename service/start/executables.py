"""A model's executables: loaded from a bundle, or compiled in the background; and the bundle made of them.

Without a bundle a start needs few of them to answer: a step that holds any chunk and one that holds any batch. The
others are compiled while requests are answered, on threads that leave the processors to the steps.
"""

import contextlib
import gc
import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.bundles.bundle import Bundle, BundledFile, BundleRefused, make_bundle
from service.bundles.kept import KeptExecutables
from service.bundles.lookup import BundlePlaces
from service.compile.aot import STACK_BYTES, compile_programs, compile_timed
from service.compile.lazy import LazyExecutables, Making
from service.compile.program import Executable, Program, load_executable
from service.device.memory import Device, is_absent
from service.start.imports import run_deferred
from service.start.kinds.model_spec import ModelSpec
from service.start.niceness import yield_to_steps
from service.start.progress import Phase, StartProgress

logger = logging.getLogger(__name__)

# Compiling for a GPU times kernels on it: more at once would measure one another, and share what memory is left.
MAX_GPU_COMPILE_THREADS = 2


@dataclass(frozen=True)
class BundleSearch:
    """The places that were searched, and the bundle that was found."""

    places: BundlePlaces
    found: Bundle | None
    begin_s: float  # when the search began, in seconds since the process began
    shared: Mapping[str, Executable] | None = None  # of a model of the same bundle; then no place was searched

    @property
    def outcome(self) -> str:
        """Where the executables come from: shared, hit, miss, stale, corrupt or unsigned."""
        return self.places.outcome if self.shared is None else "shared"


@dataclass(frozen=True)
class Executables:
    """All executables of a model. Some may still be loading or compiling; reading one waits for it."""

    by_name: Mapping[str, Executable]
    first: Sequence[str]  # what the first token needs
    bundle: Bundle | None = None  # they came from it, if there is one
    compiler: "_Compiler | None" = None  # it made them, if there was no bundle
    is_shared: bool = False  # whether another model of this process has them too, and so has run them

    @property
    def is_hit(self) -> bool:
        """Whether they have run on this kind of device before, because they came from a bundle or are shared."""
        return self.bundle is not None or self.is_shared

    def wait(self) -> None:
        """Make all that are missing, and wait for them.

        Raises:
            Exception: making one of them failed; the others have been made.
        """
        if isinstance(self.by_name, LazyExecutables):
            self.by_name.wait()

    def wait_for_first(self) -> None:
        """Wait for what the first token needs, unless it comes from a bundle: a step waits for what it lacks.

        Raises:
            Exception: compiling one failed.
        """
        if not self.is_hit:
            for name in self.first:
                self.by_name[name]

    def to_bundle(self, spec: ModelSpec, progress: StartProgress) -> Bundle:
        """Return the bundle that they came from, or serialize them."""
        if self.bundle is not None:
            return self.bundle
        assert self.compiler is not None, "executables come from a bundle or from a compiler"
        making = {"recipe": spec.recipe(), "start": progress.report()}
        return make_bundle(spec.key, self.by_name, self.compiler.seconds, making, self.compiler.take_loaded())


def find_bundle(
    spec: ModelSpec, places: BundlePlaces, progress: StartProgress, *, takes_any: bool = True
) -> BundleSearch:
    """Look for the bundle of a model.

    Args:
        spec: the model.
        places: where bundles lie.
        progress: of the start.
        takes_any: whether one that was made without the device will do, if there is no other.
    """
    begin_s = progress.elapsed_s()
    without_device = spec.key.without_device if takes_any else None
    with progress.part(Phase.EXECUTABLES, "find bundle"):
        found = places.find([spec.key, *([without_device] if without_device else [])], spec.names.every)
    search = BundleSearch(places, found, begin_s)
    if found is not None and found.manifest.key != spec.key.digest:
        logger.warning(
            "the bundle was made without the device, with kernels that were not timed; `levserve prewarm` on a machine "
            "that has it makes one whose are",
            extra={"key": found.manifest.key, "missing": spec.key.digest},
        )
    return search


def search_facts(spec: ModelSpec, search: BundleSearch) -> dict[str, Any]:
    """Return what the log says about the executables of a start."""
    size = {} if search.found is None else {"bundle_bytes": search.found.size_bytes}
    return {"bundle": search.outcome, "executables": len(spec.names.every), **size}


def obtain_executables(spec: ModelSpec, search: BundleSearch, progress: StartProgress) -> Executables:
    """Return what is shared, or begin to load the executables of a bundle or to compile them; does not wait."""
    if search.shared is not None:
        progress.count_executables(len(spec.names.every), len(spec.names.every))
        return Executables(search.shared, spec.names.first, is_shared=True)
    progress.count_executables(0, len(spec.names.every))
    if search.found is not None:
        return _load_all(spec, search.found, progress)
    return compile_all(spec, search, progress)


def compile_all(spec: ModelSpec, search: BundleSearch, progress: StartProgress) -> Executables:
    """Begin to compile every executable from its shapes, without waiting for a weight."""
    gc.enable()  # unlike importing, tracing produces garbage
    compiler = _Compiler(spec, search.places.kept(spec.key), progress)
    first = spec.names.sufficient
    num_threads = num_compile_threads(spec.mesh.devices[0])
    making = Making(
        compiler.obtain,
        num_first_threads=num_threads,
        num_rest_threads=num_threads,
        stack_bytes=STACK_BYTES,
        lookups_make=False,
        on_rest_thread=yield_to_steps,
    )
    return Executables(LazyExecutables(spec.names.compile_order, len(first), making), first, compiler=compiler)


def num_compile_threads(device: Device) -> int:
    """Return how many executables are compiled at once."""
    num_processors = os.cpu_count() or 1
    is_timed_on = device.platform == "gpu" and not is_absent(device)
    return min(num_processors, MAX_GPU_COMPILE_THREADS) if is_timed_on else num_processors


def _load_all(spec: ModelSpec, bundle: Bundle, progress: StartProgress) -> Executables:
    done = itertools.count(1)
    names = spec.names.every

    def load_one(name: str) -> Executable:
        with progress.part(Phase.EXECUTABLES, name):
            try:
                executable = load_executable(bundle.data[name], spec.mesh.devices)
            except Exception as error:  # of whatever kind: the bytes are those that were stored, and useless here
                facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
                logger.warning("an executable of the bundle does not load; compiling it instead", extra=facts)
                [program] = [program for program in _programs(spec, progress) if program.name == name]
                executable = compile_programs([program], num_threads=1)[name].executable
        progress.count_executables(next(done), len(names))
        return executable

    num_processors = os.cpu_count() or 1
    first = spec.names.first
    making = Making(
        load_one,
        num_first_threads=max(1, num_processors - 1),  # the imports that run at the same time need one processor
        num_rest_threads=num_processors,
    )
    return Executables(LazyExecutables(names, len(first), making), first, bundle)


class _Compiler:
    """Compiles executables, except those that an earlier start kept, and keeps each one at once."""

    def __init__(self, spec: ModelSpec, kept: KeptExecutables, progress: StartProgress) -> None:
        self.seconds: dict[str, float] = {}  # to compile each, now or in an earlier start
        self._loaded: dict[str, bytes] = {}
        self._spec, self._keeper, self._progress = spec, kept, progress
        self._done = itertools.count(1)
        self._lock = threading.Lock()
        self._can_keep = True

    def obtain(self, name: str) -> Executable:
        """Load what was kept, or compile."""
        begin_s = self._progress.elapsed_s()
        executable = self._load(name) or self._compile(name)
        self._progress.record(Phase.EXECUTABLES, name, begin_s=begin_s)
        self._progress.count_executables(next(self._done), len(self._spec.names.every))
        return executable

    def take_loaded(self) -> Mapping[str, bytes]:
        """Hand over the bytes of those that an earlier start had compiled."""
        loaded, self._loaded = self._loaded, {}
        return loaded

    def _load(self, name: str) -> Executable | None:
        with self._lock:
            found = self._kept.pop(name, None)
        if found is not None:
            file, data = found
            with contextlib.suppress(Exception):  # of whatever kind: it is compiled again
                executable = load_executable(data, self._spec.mesh.devices)
                self.seconds[name] = file.compile_seconds
                self._loaded[name] = data
                return executable
        return None

    def _compile(self, name: str) -> Executable:
        with self._lock:
            program = self._programs[name]
        compiled = compile_timed(program)
        self.seconds[name] = compiled.seconds
        self._keep(name, compiled.executable, compiled.seconds)
        return compiled.executable

    def _keep(self, name: str, executable: Executable, seconds: float) -> None:
        try:
            if self._can_keep:
                self._keeper.add(name, executable.serialize(), seconds)
        except Exception as error:  # the service answers all the same, and not every backend can serialize
            self._can_keep = False
            facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
            logger.warning("executables are not kept one by one; a start that is stopped loses them", extra=facts)

    @cached_property
    def _kept(self) -> dict[str, tuple[BundledFile, bytes]]:
        try:
            kept = dict(self._keeper.read())
        except (OSError, BundleRefused) as error:
            logger.warning("what an earlier start compiled cannot be read", extra={"reason": str(error)})
            return {}
        if kept:
            logger.info("an earlier start was stopped while it compiled", extra={"executables_kept": len(kept)})
        return kept

    @cached_property
    def _programs(self) -> Mapping[str, Program]:
        return {program.name: program for program in _programs(self._spec, self._progress)}


def _programs(spec: ModelSpec, progress: StartProgress) -> Sequence[Program]:
    with progress.phase(Phase.IMPORT, "model"):
        run_deferred()
        model = spec.model()
    return spec.programs(model)
