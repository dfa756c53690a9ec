"""The executables of an engine: out of a bundle, or compiled, and then a bundle is made of them."""

import gc
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from service.bundles.bundle import Bundle, make_bundle
from service.bundles.lookup import Bundles
from service.compile.aot import Compiled, compile_programs
from service.compile.lazy import LazyExecutables
from service.compile.program import Executable, load_executable
from service.engine.steps.programs import engine_programs, first_names, program_names
from service.kernels.attention import keeps_rows
from service.models.weight_shapes import weight_shapes
from service.start.deferred_modules import run_put_off
from service.start.progress import Phase, Startup
from service.start.spec import EnginePlan

logger = logging.getLogger(__name__)


@dataclass
class Executables:
    """All executables of a plan; those of a bundle may still be on their way, and who asks for one waits for it."""

    by_name: Mapping[str, Executable]
    bundle: Bundle | None = None  # that they came from
    compile_seconds: Mapping[str, float] = field(default_factory=dict)  # of those that were compiled

    @property
    def is_hit(self) -> bool:
        """Whether they came from a bundle, so that each has produced tokens before."""
        return self.bundle is not None

    def to_bundle(self, plan: EnginePlan, startup: Startup) -> Bundle:
        """Return the bundle that they came from, or serialize them."""
        if self.bundle is not None:
            return self.bundle
        making = {"recipe": plan.recipe(), "start": startup.report()}
        return make_bundle(plan.key, self.by_name, self.compile_seconds, making)


def obtain(
    plan: EnginePlan,
    bundles: Bundles,
    startup: Startup,
    *,
    on_begun: Callable[[], None],
    on_usable: Callable[[Executables], None],
    before_rest: Callable[[], object],
) -> Executables:
    """Load the executables of a plan out of its bundle, or compile them.

    Args:
        plan: what they are for.
        bundles: where to look.
        startup: told how far it is.
        on_begun: called when loading or compiling is under way.
        on_usable: called as soon as executables can be asked for, before the last of a bundle is there.
        before_rest: waits until those of a bundle may be loaded that a first token does not need.
    """
    names = program_names(plan.shapes, plan.stages, keeps_rows=keeps_rows(plan.mesh.platform))
    startup.count_executables(0, len(names))
    with startup.phase(Phase.EXECUTABLES) as facts:
        with startup.part(Phase.EXECUTABLES, "find bundle"):
            bundle = bundles.find(plan.key, names)
        facts |= {"bundle": bundles.outcome, "executables": len(names)}
        if bundle is None:
            on_begun()
            executables = compile_all(plan, startup)
            on_usable(executables)
            return executables
        facts["bundle_bytes"] = bundle.size_bytes
        loading = _load(bundle, plan, names, startup)
        executables = Executables(loading, bundle)
        on_begun()
        on_usable(executables)
        before_rest()
        loading.wait()
    return executables


def compile_all(plan: EnginePlan, startup: Startup) -> Executables:
    """Compile every executable from its shapes; no weight is waited for."""
    gc.enable()  # tracing, unlike importing, leaves garbage
    compiled = _compile(plan, startup)
    return Executables(
        {name: program.executable for name, program in compiled.items()},
        compile_seconds={name: program.seconds for name, program in compiled.items()},
    )


def _load(bundle: Bundle, plan: EnginePlan, names: Sequence[str], startup: Startup) -> LazyExecutables:
    done = itertools.count(1)

    def load_one(name: str) -> Executable:
        with startup.part(Phase.EXECUTABLES, name):
            try:
                executable = load_executable(bundle.data[name], plan.mesh.devices)
            except Exception as error:  # whatever it is, the bytes are those that were stored, and useless here
                facts = {"executable": name, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
                logger.warning("an executable of the bundle does not load; compiling it instead", extra=facts)
                executable = _compile(plan, startup, [name])[name].executable
        startup.count_executables(next(done), len(names))
        return executable

    num_processors = os.cpu_count() or 1
    return LazyExecutables(
        names,
        load_one,
        num_first=len(first_names(plan.shapes, plan.stages)),
        num_first_threads=max(1, num_processors - 1),  # one is for the imports that go on meanwhile
        num_threads=num_processors,
    )


def _compile(plan: EnginePlan, startup: Startup, names: Sequence[str] | None = None) -> Mapping[str, Compiled]:
    """Compile the programs of these names, or all."""
    with startup.phase(Phase.IMPORT, "haliax"):
        run_put_off()
        model = plan.model()
    programs = engine_programs(model, plan.shapes, weight_shapes(plan.specs, plan.dtype, plan.mesh))
    wanted = [program for program in programs if names is None or program.name in names]
    done = itertools.count(1)

    def tell(name: str, seconds: float) -> None:
        startup.record(Phase.EXECUTABLES, name, begin_s=startup.elapsed_s() - seconds)
        if names is None:
            startup.count_executables(next(done), len(wanted))

    return compile_programs(wanted, num_threads=os.cpu_count() or 1, on_compiled=tell)
