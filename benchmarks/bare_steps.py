"""The compiled steps of an engine, called back to back without HTTP, threads or scheduling.

The work equals that of a wave of requests: all prefill steps, then the decode steps of all sequences. The arrays of
every step are made before the clock starts, no token is read before the end, and no page is kept for reuse.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from service.engine.batch import needed_bucket, pack
from service.engine.engine import Engine
from service.engine.prefill_row import PrefillRow
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import Bucket, StepKind
from service.engine.steps.inputs import StepInputs
from service.engine.steps.names import SamplingPart


class Step(NamedTuple):
    """The arguments of a step's programs."""

    kind: StepKind
    bucket: Bucket
    inputs: StepInputs
    is_sampled: bool  # whether a prompt ends in this step
    copies_before: list[PageCopy]
    copies_after: list[PageCopy]


class BareSteps:
    """The executables, weights and device state of an idle engine."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.runner, Runner)
        self._runner = engine.runner
        self._shapes = engine.shapes

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Run the steps of a wave and return the seconds of its prefill and decode steps."""
        prefill, decode = self._steps(prompts, output_tokens)
        (prefill_s, prefill_cpu_s), (decode_s, decode_cpu_s) = self._time(prefill), self._time(decode)
        return {
            "seconds": prefill_s + decode_s,
            "prefill_s": prefill_s,
            "decode_s": decode_s,
            "prefill_cpu_s": prefill_cpu_s,
            "decode_cpu_s": decode_cpu_s,
            "prefill_steps": len(prefill),
            "decode_steps": len(decode),
        }

    def _steps(self, prompts: list[list[int]], output_tokens: int) -> tuple[list[Step], list[Step]]:
        """Plan the wave with a separate scheduler: all prefill steps, then all decode steps."""
        scheduler = Scheduler(
            num_slots=self._shapes.num_slots,
            num_pages=self._shapes.num_pages,
            page_size=self._shapes.page_size,
            chunking=Chunking(self._shapes.prefill),
        )
        for i, prompt in enumerate(prompts):
            scheduler.add(Request(str(i), tuple(prompt), output_tokens, sampling=Sampling(temperature=0.0)))
        row = PrefillRow(self._shapes)
        prefill = [self._packed(plan, row) for plan in _plans(scheduler, StepKind.PREFILL)]
        return prefill, [self._packed(plan, row) for plan in _plans(scheduler, StepKind.DECODE)]

    def _packed(self, plan: Plan, row: PrefillRow) -> Step:
        bucket = self._shapes.grids[plan.kind].smallest(needed_bucket(plan, self._shapes))
        is_sampled = any(planned.is_sampled for planned in plan.seqs)
        inputs = pack(plan, bucket, self._shapes)
        return Step(plan.kind, bucket, inputs, is_sampled, row.before(plan, bucket), row.after(plan, bucket))

    def _time(self, steps: list[Step]) -> tuple[float, float]:
        """Return wall and CPU seconds."""
        outputs: Any = None
        started, cpu_started = time.perf_counter(), time.process_time()
        for step in steps:
            self._runner.copy_pages(step.copies_before)
            if step.kind is StepKind.DECODE:
                outputs = self._runner.decode(step.bucket, step.inputs, SamplingPart.GREEDY)
            else:
                made = outputs = self._runner.run_model(step.kind, step.bucket, step.inputs)
                if step.is_sampled:
                    outputs = self._runner.sample(made)
            self._runner.copy_pages(step.copies_after)
        jax.block_until_ready(outputs)
        return time.perf_counter() - started, time.process_time() - cpu_started


def _plans(scheduler: Scheduler, kind: StepKind) -> Iterator[Plan]:
    while plan := scheduler.plan(only=kind):
        yield plan
