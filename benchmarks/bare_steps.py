"""The compiled steps of an engine, called back to back without HTTP, threads or scheduling.

The work equals that of a wave of requests: all prefill steps, then the decode steps of all sequences. The arrays of
every step are made before the clock starts, no token is read before the end, and no page is kept for reuse.
"""

import time
from collections.abc import Iterator
from typing import Any

from service.device.read_speed import measure_read_speed
from service.engine.batch import PackedStep, pack
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import StepKind


class BareSteps:
    """The executables, weights and device state of an idle engine."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.runner, Runner)
        self._runner = engine.runner
        self._shapes = engine.shapes
        weights = engine.runner.product_weights
        self._weights_bytes, self._read_speed = sum(array.nbytes for array in weights), measure_read_speed(weights)

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
            # Of the speed at which all cores read the weights and do nothing else.
            "share_of_read_speed": self._read_speed and len(decode) * self._weights_bytes / decode_s / self._read_speed,
        }

    def _steps(self, prompts: list[list[int]], output_tokens: int) -> tuple[list[PackedStep], list[PackedStep]]:
        """Plan the wave with a separate scheduler: all prefill steps, then all decode steps."""
        scheduler = Scheduler.of(self._shapes)
        for i, prompt in enumerate(prompts):
            scheduler.add(Request(str(i), tuple(prompt), output_tokens, sampling=Sampling(temperature=0.0)))
        available = self._runner.available_steps()
        prefill = [pack(plan, available, self._shapes) for plan in _plans(scheduler, StepKind.PREFILL)]
        decode = [pack(plan, available, self._shapes) for plan in _plans(scheduler, StepKind.DECODE)]
        return prefill, decode

    def _time(self, steps: list[PackedStep]) -> tuple[float, float]:
        """Return wall and CPU seconds."""
        started, cpu_started = time.perf_counter(), time.process_time()
        results = [self._runner.run(step) for step in steps]
        results[-1].read()
        return time.perf_counter() - started, time.process_time() - cpu_started


def _plans(scheduler: Scheduler, kind: StepKind) -> Iterator[Plan]:
    while plan := scheduler.plan(only=kind):
        yield plan
