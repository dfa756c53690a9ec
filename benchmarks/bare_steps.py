"""The compiled steps of an engine called back to back: what is left when HTTP, threads and scheduling are taken away.

The same work as a wave of requests: each prompt's prefill steps, then decode steps of all sequences at once. The arrays
of every step are made before the clock starts, and no token is read before the last.
"""

import time
from typing import Any

from service.compile.buckets import bucket_name
from service.engine.batch import StepInputs, choose_bucket, pack
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.scheduler import Plan, PlannedRow, StepKind
from service.engine.sequence import Sequence


class BareSteps:
    """An idle engine's executables, weights and device state."""

    def __init__(self, engine: Engine) -> None:
        runner = engine._loop._runner
        assert isinstance(runner, Runner)
        self._runner = runner
        self._shapes = engine.shapes

    def run(self, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Do the steps of a wave and return how long the prefill and the decode steps took."""
        pages_each = self._shapes.pages_for(len(prompts[0]) + output_tokens)
        sequences = [
            Sequence(
                Request(str(slot), tuple(prompt), output_tokens, sampling=Sampling(temperature=0.0)),
                slot=slot,
                pages=list(range(slot * pages_each, (slot + 1) * pages_each)),
            )
            for slot, prompt in enumerate(prompts)
        ]
        prefill = [self._packed(plan) for sequence in sequences for plan in self._prefill_plans(sequence)]
        decode = [self._packed(self._decode_plan(sequences, i)) for i in range(output_tokens - 1)]
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

    def _prefill_plans(self, sequence: Sequence) -> list[Plan]:
        token_ids = sequence.request.prompt_ids
        chunk = max(self._shapes.prefill_grid.sizes["num_tokens"])
        rows = (
            PlannedRow(sequence, start, token_ids[start : start + chunk], is_sampled=True)
            for start in range(0, len(token_ids), chunk)
        )
        return [Plan(StepKind.PREFILL, (row,)) for row in rows]

    def _decode_plan(self, sequences: list[Sequence], index: int) -> Plan:
        rows = (PlannedRow(sequence, sequence.prompt_len + index, (), is_sampled=True) for sequence in sequences)
        return Plan(StepKind.DECODE, tuple(rows))

    def _packed(self, plan: Plan) -> tuple[str, StepInputs]:
        bucket = choose_bucket(plan, self._shapes)
        return bucket_name(plan.kind, bucket), pack(plan, bucket, self._shapes)

    def _time(self, steps: list[tuple[str, StepInputs]]) -> tuple[float, float]:
        runner, token_ids = self._runner, None
        started, cpu_started = time.perf_counter(), time.process_time()
        for name, inputs in steps:
            runner._state, token_ids = runner._executables[name](runner._weights, runner._state, inputs)
        if token_ids is not None:
            token_ids.block_until_ready()
        return time.perf_counter() - started, time.process_time() - cpu_started
