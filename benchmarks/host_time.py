"""Host time of one decode step, measured with a model of almost no cost.

    python -m benchmarks.host_time --sequences 64

The figure is the CPU time of the device thread from one decode step to the next: planning, packing, dispatch, reading
and delivery. Waiting for the device takes no CPU time. XLA may run parts of the fake model on the same thread, so the
figure is an upper bound. `plan_us`, `pack_us` and `commit_us` are of the host's work alone, without any device.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable

from benchmarks.hand_counted import HandCountedModel
from service.compile.aot import compile_programs
from service.engine.batch import pack
from service.engine.engine import Engine
from service.engine.loop import DispatchedStep
from service.engine.page_tables import PageTables
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import AvailableSteps, EngineShapes, StepKind
from service.engine.steps.programs import engine_programs
from service.observability.model_metrics import ModelMetrics

PROMPT_TOKENS, CONTEXT_TOKENS = 16, 256
SKIPPED_STEPS = 10  # at the beginning and at the end, where not all sequences run


class ClockedRunner:
    """A runner that records the clocks of the device thread at each dispatch."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.marks: list[
            tuple[StepKind, int, float, float]
        ] = []  # kind, number of sequences, CPU seconds, wall seconds

    def dispatch(self, plan: Plan, read_previous: Callable[[], None]) -> DispatchedStep:
        """Record the clocks and dispatch the plan."""
        self.marks.append((plan.kind, len(plan.seqs), time.thread_time(), time.perf_counter()))
        return self._runner.dispatch(plan, read_previous)

    @property
    def waited_for_compile_s(self) -> float:
        """Seconds that steps have waited for executables."""
        return self._runner.waited_for_compile_s

    def available_steps(self) -> AvailableSteps:
        """Return what the wrapped runner can run."""
        return self._runner.available_steps()

    @property
    def may_wait(self) -> bool:
        """Whether a step of the wrapped runner may wait for an executable."""
        return self._runner.may_wait


def _shapes(num_sequences: int) -> EngineShapes:
    return EngineShapes(
        num_slots=num_sequences,
        num_pages=num_sequences * CONTEXT_TOKENS // 16,
        page_size=16,
        max_model_len=CONTEXT_TOKENS,
        max_prefill_tokens=PROMPT_TOKENS,
    )


def measure(num_sequences: int, num_steps: int) -> dict[str, float]:
    """Run many sequences through an engine and return the milliseconds per full decode step."""
    shapes = _shapes(num_sequences)
    model = HandCountedModel()
    programs = engine_programs(model, shapes, {})
    executables = {name: program.executable for name, program in compile_programs(programs, num_threads=2).items()}
    runner = Runner(shapes, model.layer_groups, {}, executables)
    runner.warm()
    clocked = ClockedRunner(runner)
    engine = Engine(clocked, shapes, ModelMetrics(), max_requests=num_sequences)
    engine.start()
    asyncio.run(_run_together(engine, num_sequences, num_steps + 2 * SKIPPED_STEPS))
    engine.stop()
    full = [mark for mark in clocked.marks if mark[:2] == (StepKind.DECODE, num_sequences)]
    full = full[SKIPPED_STEPS:-SKIPPED_STEPS]
    pairs = list(itertools.pairwise(full))
    return {
        "cpu_ms": 1000 * statistics.median(b[2] - a[2] for a, b in pairs),
        "wall_ms": 1000 * statistics.median(b[3] - a[3] for a, b in pairs),
        "steps": len(pairs),
    }


def measure_host(num_sequences: int, num_steps: int) -> dict[str, float]:
    """Plan, pack and commit decode steps without a device, and return the microseconds of CPU time of each."""
    shapes = _shapes(num_sequences)
    scheduler, tables = Scheduler.of(shapes), PageTables(shapes)
    available = AvailableSteps(shapes.buckets, max(shapes.row_counts), is_complete=True)
    prompt = tuple(range(1, PROMPT_TOKENS + 1))
    for number in range(num_sequences):
        scheduler.add(Request(str(number), prompt, CONTEXT_TOKENS - PROMPT_TOKENS, Sampling(temperature=0.0)))
    times: list[tuple[int, int, int]] = []
    while len(times) < num_steps and (begin := time.thread_time_ns()) and (plan := scheduler.plan()) is not None:
        planned = time.thread_time_ns()
        pack(plan, available, shapes, tables)
        packed = time.thread_time_ns()
        scheduler.commit(plan, [0] * len(plan.seqs))
        if plan.num_decodes == num_sequences:
            times.append((planned - begin, packed - planned, time.thread_time_ns() - packed))
    names = ("plan_us", "pack_us", "commit_us")
    return {name: statistics.median(step[index] for step in times) / 1000 for index, name in enumerate(names)}


async def _run_together(engine: Engine, num_sequences: int, num_tokens: int) -> None:
    prompt = tuple(range(1, PROMPT_TOKENS + 1))
    greedy = Sampling(temperature=0.0)
    # The first sequences generate more tokens, so that all run together during the measured steps.
    requests = [
        Request(str(i), prompt, num_tokens + 2 * (num_sequences - i), sampling=greedy) for i in range(num_sequences)
    ]
    requests = [Request(r.id, prompt, min(r.max_tokens, CONTEXT_TOKENS - PROMPT_TOKENS), greedy) for r in requests]
    await asyncio.gather(*(_read(engine, request) for request in requests))


async def _read(engine: Engine, request: Request) -> None:
    async for _ in engine.submit(request):
        pass


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    of_host = measure_host(options.sequences, options.steps)
    print(json.dumps(measure(options.sequences, options.steps) | of_host))


if __name__ == "__main__":
    main()
