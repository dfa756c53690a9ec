"""A model's executables, loaded from a bundle or compiled in the background and then bundled.

Without a bundle, a start needs only a few executables to answer: a step that fits any chunk and one that fits any
batch. The others are compiled while requests are answered, on low-priority threads.
"""

import contextlib
import gc
import itertools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from service.bundles.bundle import Bundle, BundledFile, BundleRefused, bundle_that_ran, make_bundle
from service.bundles.lookup import BundlePlaces
from service.bundles.partial import PartialBundle
from service.compile.aot import STACK_BYTES, compile_timed
from service.compile.counter import planned_compilation
from service.compile.elsewhere import load_elsewhere
from service.compile.lazy import BuildPlan, LazyExecutables
from service.compile.program import Executable, Program, load_executable
from service.device.memory import Device, is_absent
from service.device.mesh import DeviceMesh
from service.start.imports import run_deferred
from service.start.kinds.model_spec import ModelSpec
from service.start.niceness import yield_to_steps
from service.start.progress import Phase, StartProgress

logger = logging.getLogger(__name__)

# Compiling for a GPU times kernels on it: more threads would compete for its memory. With six on an H200, the steps of
# an 8B model are as fast as those of executables that were compiled one by one.
MAX_GPU_COMPILE_THREADS = 6
BYTES_OF_GPU_COMPILATION = (
    20e9  # of a GPU's memory, for each thread beyond two; an L4 with 8B weights has 1 GB to spare
)

CHECKED_PLATFORMS = ("gpu", "tpu")  # whose attention kernels were written without such a device at hand


@dataclass(frozen=True)
class BundleSearch:
    """The result of a bundle lookup."""

    spec: ModelSpec  # whose executables they are
    places: BundlePlaces
    bundle: Bundle | None
    begin_s: float  # when the search began, in seconds since the process began
    # Of another model with the same key, if it is loaded: its executables on the devices of each engine.
    shared: Sequence[Mapping[str, Executable]] | None = None

    @property
    def outcome(self) -> str:
        """The outcome of the lookup: shared, hit, miss, stale, corrupt or unsigned."""
        return self.places.outcome if self.shared is None else "shared"

    @property
    def has_run(self) -> bool:
        """Whether these executables, and so their attention kernel, have run on such a device."""
        return self.shared is not None or (self.bundle is not None and self.bundle.has_run)


@dataclass(frozen=True)
class StartExecutables:
    """All executables of a model. Some may still be loading or compiling; a lookup waits for its executable."""

    by_engine: Sequence[Mapping[str, Executable]]  # by name, on the devices of each engine
    first: Sequence[str]  # names of the executables that the first token needs
    bundle: Bundle | None = None  # the source of the executables, if any
    compiler: "_Compiler | None" = None  # compiles the executables that no bundle has, or that do not load from it
    is_shared: bool = False  # whether another model of this process uses them, and so has run them

    @property
    def by_name(self) -> Mapping[str, Executable]:
        """The executables of the first engine, from which those of the others are made."""
        return self.by_engine[0]

    @property
    def is_hit(self) -> bool:
        """Whether the executables have run on this kind of device before: they come from a bundle or are shared."""
        return self.bundle is not None or self.is_shared

    def wait(self) -> None:
        """Load or compile all missing executables of the first engine and wait for them.

        Raises:
            Exception: one of them failed; the others are available.
        """
        _wait_for(self.by_name)

    def wait_elsewhere(self) -> None:
        """Load those of the other engines; as `wait`."""
        for by_name in self.by_engine[1:]:
            _wait_for(by_name)

    def wait_for_first(self) -> None:
        """Wait for the executables of the first token, unless they come from a bundle, where each step waits itself.

        Raises:
            Exception: compiling one failed.
        """
        if not self.is_hit:
            for name in self.first:
                self.by_name[name]

    def to_bundle(self, spec: ModelSpec, progress: StartProgress) -> Bundle:
        """Return the bundle of executables that have run: the one that they came from, if that says so already."""
        assert self.compiler is not None, "executables come from a bundle or from a compiler"
        if self.bundle is not None:
            compiled = {name: self.by_name[name] for name in self.compiler.seconds}
            is_known = self.bundle.has_run and not compiled
            return self.bundle if is_known else bundle_that_ran(self.bundle, compiled, self.compiler.seconds)
        has_run = not is_absent(spec.mesh.devices[0])
        making = {"recipe": spec.recipe(), "start": progress.report(), "has_run": has_run}
        return make_bundle(spec.key, self.by_name, self.compiler.seconds, making, self.compiler.take_loaded())


def _wait_for(by_name: Mapping[str, Executable]) -> None:
    if isinstance(by_name, LazyExecutables):
        by_name.wait()


def find_bundle(
    spec: ModelSpec, places: BundlePlaces, progress: StartProgress, *, accepts_untuned: bool = True
) -> BundleSearch:
    """Look for the bundle of a model.

    Args:
        spec: the model.
        places: the stores to search.
        progress: the progress of the start.
        accepts_untuned: whether to accept a bundle compiled without the device if there is no other.
    """
    begin_s = progress.elapsed_s()
    without_device = spec.key.without_device if accepts_untuned else None
    with progress.part(Phase.EXECUTABLES, "find bundle"):
        bundle = places.find([spec.key, *([without_device] if without_device else [])], spec.names.every)
    if bundle is not None and bundle.manifest.key != spec.key.digest:
        logger.warning(
            "this bundle was compiled without the device, so kernels without kept tunings are untuned; run `levserve "
            "prewarm` on the target machine for a tuned one",
            extra={"key": bundle.manifest.key, "missing": spec.key.digest},
        )
    return BundleSearch(spec, places, bundle, begin_s)


def find_checked(
    find: Callable[[ModelSpec], BundleSearch],
    spec: ModelSpec,
    replan: Callable[[str], ModelSpec],
    progress: StartProgress,
) -> BundleSearch:
    """Look for a model's bundle; if none has run on such a device, check the attention kernel before it is compiled.

    A kernel that fails or is wrong is refused, and the slow reference serves.

    Args:
        find: looks for the bundle of a spec.
        spec: the model, with the kernel that its device usually has.
        replan: returns the spec with the reference kernel, given what is wrong with the usual one.
        progress: the progress of the start.
    """
    found = find(spec)
    if found.has_run or spec.mesh.platform not in CHECKED_PLATFORMS:
        return found
    with progress.part(Phase.EXECUTABLES, "check kernel"), planned_compilation():
        fault = spec.kernel_fault()
    if fault is None:
        return found
    device = spec.mesh.devices[0].device_kind
    logger.error(
        "the attention kernel is refused on this %s: %s. The reference kernel serves instead, many times slower. "
        "Report this line with the table of `make device-check`; an earlier version may not have this fault",
        device,
        fault,
        extra={"device": device, "reason": fault},
    )
    return find(replan(fault))


def search_log_fields(search: BundleSearch) -> dict[str, Any]:
    """Return the log fields about the executables of a start."""
    size = {} if search.bundle is None else {"bundle_bytes": search.bundle.size_bytes}
    return {"bundle": search.outcome, "executables": len(search.spec.names.every), **size}


def obtain_executables(search: BundleSearch, progress: StartProgress) -> StartExecutables:
    """Return shared executables, or start to load or compile them, without waiting."""
    spec = search.spec
    if search.shared is not None:
        progress.count_executables(len(spec.names.every), len(spec.names.every))
        return StartExecutables(search.shared, spec.names.first, is_shared=True)
    progress.count_executables(0, len(spec.names.every))
    if search.bundle is not None:
        return _load_all(search, search.bundle, progress)
    return compile_all(search, progress)


def compile_all(search: BundleSearch, progress: StartProgress) -> StartExecutables:
    """Start to compile every executable from its shapes, without waiting for weights."""
    spec = search.spec
    gc.enable()  # unlike importing, tracing produces garbage
    compiler = _Compiler(spec, search.places.partial(spec.key), progress)
    first = spec.names.sufficient
    num_threads = num_compile_threads(spec.mesh.devices[0])
    plan = BuildPlan(
        compiler.obtain,
        num_first_threads=num_threads,
        num_rest_threads=num_threads,
        stack_bytes=STACK_BYTES,
        builds_on_lookup=False,
        on_rest_thread=yield_to_steps,
    )
    by_name = LazyExecutables(spec.names.compile_order, len(first), plan)
    others = _on_other_devices(spec, by_name, lambda name: compiler.serialized(name, by_name[name]))
    return StartExecutables([by_name, *others], first, compiler=compiler)


def num_compile_threads(device: Device) -> int:
    """Return how many executables to compile at the same time."""
    num_processors = os.cpu_count() or 1
    if device.platform != "gpu" or is_absent(device):
        return num_processors
    memory_bytes = (device.memory_stats() or {}).get("bytes_limit", 0)
    most = max(2, int(memory_bytes // BYTES_OF_GPU_COMPILATION))
    return min(num_processors, most, MAX_GPU_COMPILE_THREADS)


def _load_all(search: BundleSearch, bundle: Bundle, progress: StartProgress) -> StartExecutables:
    spec, done = search.spec, itertools.count(1)
    names = spec.names.every
    compiler = _Compiler(spec, search.places.partial(spec.key), progress)
    may_compile = threading.BoundedSemaphore(num_compile_threads(spec.mesh.devices[0]))

    def load_one(name: str) -> Executable:
        with progress.part(Phase.EXECUTABLES, name):
            try:
                executable = load_executable(bundle.data[name], spec.mesh.devices)
            except Exception as error:  # any failure to load verified bytes means that they are useless here
                fields = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
                logger.warning("an executable of the bundle failed to load; compiling it instead", extra=fields)
                with may_compile:
                    executable = compiler.compile(name)
        progress.count_executables(next(done), len(names))
        return executable

    num_processors = os.cpu_count() or 1
    first = spec.names.first
    plan = BuildPlan(
        load_one,
        num_first_threads=max(1, num_processors - 1),  # leave one processor for concurrent imports
        num_rest_threads=num_processors,
    )
    by_name = LazyExecutables(names, len(first), plan)

    def serialized(name: str) -> bytes:
        executable = by_name[name]  # which may have been compiled
        return executable.serialize() if name in compiler.seconds else bundle.data[name]

    return StartExecutables([by_name, *_on_other_devices(spec, by_name, serialized)], first, bundle, compiler)


def _on_other_devices(
    spec: ModelSpec, by_name: LazyExecutables, serialized: Callable[[str], bytes]
) -> list[LazyExecutables]:
    """Return the executables on the devices of each engine but the first, which are loaded when they are needed.

    Args:
        spec: the model.
        by_name: those of the first engine.
        serialized: returns the bytes of one of these, once it has been built.
    """

    def load(name: str, mesh: DeviceMesh) -> Executable:
        return load_elsewhere(serialized(name), spec.mesh.devices, mesh.devices)

    return [
        LazyExecutables(list(by_name), 0, BuildPlan(partial(load, mesh=mesh), 1, os.cpu_count() or 1))
        for mesh in spec.meshes[1:]
    ]


class _Compiler:
    """Compiles executables and saves each one immediately, reusing those that an interrupted start saved."""

    def __init__(self, spec: ModelSpec, partial: PartialBundle, progress: StartProgress) -> None:
        self.seconds: dict[str, float] = {}  # to compile each, now or in an earlier start
        self._loaded: dict[str, bytes] = {}
        self._spec, self._partial, self._progress = spec, partial, progress
        self._done = itertools.count(1)
        self._lock = threading.Lock()
        self._can_save = True

    def obtain(self, name: str) -> Executable:
        """Load a saved executable, or compile it."""
        begin_s = self._progress.elapsed_s()
        executable = self._load(name) or self.compile(name)
        self._progress.record(Phase.EXECUTABLES, name, begin_s=begin_s)
        self._progress.count_executables(next(self._done), len(self._spec.names.every))
        return executable

    def compile(self, name: str) -> Executable:
        """Compile an executable and save it."""
        with self._lock:
            program = self._programs[name]
        compiled = compile_timed(program)
        self.seconds[name] = compiled.seconds
        self._save(name, compiled.executable, compiled.seconds)
        return compiled.executable

    def serialized(self, name: str, executable: Executable) -> bytes:
        """Return the bytes of an obtained executable; on a CPU, a loaded one cannot be serialized again."""
        return self._loaded[name] if name in self._loaded else executable.serialize()

    def take_loaded(self) -> Mapping[str, bytes]:
        """Return the bytes of executables that an interrupted start compiled, and forget them."""
        loaded, self._loaded = self._loaded, {}
        return loaded

    def _load(self, name: str) -> Executable | None:
        with self._lock:
            saved = self._saved.pop(name, None)
        if saved is not None:
            file, data = saved
            with contextlib.suppress(Exception):  # on any failure it is compiled again
                executable = load_executable(data, self._spec.mesh.devices)
                self.seconds[name] = file.compile_seconds
                self._loaded[name] = data
                return executable
        return None

    def _save(self, name: str, executable: Executable, seconds: float) -> None:
        try:
            if self._can_save:
                self._partial.add(name, executable.serialize(), seconds)
        except Exception as error:  # not every backend can serialize, and the service works without it
            self._can_save = False
            fields = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
            logger.warning("executables cannot be saved one by one; an interrupted start loses them", extra=fields)

    @cached_property
    def _saved(self) -> dict[str, tuple[BundledFile, bytes]]:
        try:
            saved = dict(self._partial.read())
        except (OSError, BundleRefused) as error:
            logger.warning("the executables of an interrupted start cannot be read", extra={"reason": str(error)})
            return {}
        if saved:
            logger.info("reusing the executables of an interrupted start", extra={"executables_kept": len(saved)})
        return saved

    @cached_property
    def _programs(self) -> Mapping[str, Program]:
        return {program.name: program for program in _programs(self._spec, self._progress)}


def _programs(spec: ModelSpec, progress: StartProgress) -> Sequence[Program]:
    with progress.phase(Phase.IMPORT, "model"):
        run_deferred()
        model = spec.model()
    return spec.programs(model)
