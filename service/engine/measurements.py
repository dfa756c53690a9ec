"""The series of the device thread: what each step and each request took and moved."""

import time

from service.engine.request import FinishReason
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.sequence import Sequence
from service.observability.clock import Clock
from service.observability.model_metrics import ModelMetrics

# What a waiting sequence may lack.
REASONS = ("slots", "pages")


class Measurements:
    """Updates the series of one scheduler; belongs to its thread."""

    def __init__(self, scheduler: Scheduler, metrics: ModelMetrics) -> None:
        """Set what does not change."""
        self._scheduler, self._metrics = scheduler, metrics
        self._num_preemptions = 0  # of what the scheduler says, the part that is counted
        metrics.load.page_size, metrics.load.num_pages = scheduler.page_size, scheduler.pages.num_pages
        metrics.cache_config_info.labels(str(scheduler.page_size), str(scheduler.pages.num_pages)).set(1)

    def state(self) -> None:
        """Show what runs, what waits and what is full."""
        scheduler, metrics, load = self._scheduler, self._metrics, self._metrics.load
        load.num_running, load.num_waiting = scheduler.num_running, scheduler.num_waiting
        load.num_slots = scheduler.num_slots
        load.num_used_pages = load.num_pages - scheduler.pages.num_available
        load.updated_at = time.time()
        lacking = REASONS[0] if not scheduler.has_free_slot else REASONS[1]
        for reason in REASONS:
            waiting = scheduler.num_waiting if reason == lacking else 0
            metrics.num_requests_waiting_by_reason.labels(reason).set(waiting)
        metrics.num_preemptions.inc(scheduler.num_preemptions - self._num_preemptions)
        self._num_preemptions = scheduler.num_preemptions

    def plan(self, plan: Plan) -> None:
        """Count a step that was dispatched."""
        num_prefilled = sum(len(planned.token_ids) for planned in plan.seqs)
        self._metrics.engine_steps.labels(plan.kind).inc()
        self._metrics.prompt_tokens.inc(num_prefilled)
        self._metrics.iteration_tokens_total.observe(sum(planned.num_tokens for planned in plan.seqs))

    def scheduled(self, sequence: Sequence, clock: Clock, now_s: float) -> None:
        """Count a request whose first step was dispatched; later calls for it do nothing."""
        if clock.scheduled_s is None:
            clock.scheduled_s = now_s
            self._metrics.request_queue_time_seconds.observe(now_s - clock.submitted_s)
            self._metrics.prefix_cache_queries.inc(sequence.prompt_len)
            self._metrics.prefix_cache_hits.inc(sequence.num_cached_tokens)

    def arrived(self, clock: Clock, num_tokens: int, now_s: float) -> None:
        """Count tokens of one request that were read."""
        metrics = self._metrics
        metrics.generation_tokens.inc(num_tokens)
        if clock.last_token_s is None:
            clock.first_token_s = now_s
            metrics.time_to_first_token_seconds.observe(now_s - clock.submitted_s)
            if clock.scheduled_s is not None:
                metrics.request_prefill_time_seconds.observe(now_s - clock.scheduled_s)
        else:
            metrics.inter_token_latency_seconds.observe(now_s - clock.last_token_s)
        clock.last_token_s = now_s

    def ended(self, sequence: Sequence, clock: Clock, reason: FinishReason) -> None:
        """Count a request that has ended by itself, or was aborted."""
        metrics, num_tokens = self._metrics, len(sequence.output_ids)
        metrics.request_success.labels(reason).inc()
        metrics.request_prompt_tokens.observe(sequence.prompt_len)
        metrics.request_generation_tokens.observe(num_tokens)
        metrics.request_params_max_tokens.observe(sequence.request.max_tokens)
        if clock.first_token_s is None or clock.last_token_s is None or reason is FinishReason.ABORT:
            return
        metrics.e2e_request_latency_seconds.observe(clock.last_token_s - clock.submitted_s)
        decode_s = clock.last_token_s - clock.first_token_s
        metrics.request_decode_time_seconds.observe(decode_s)
        if clock.scheduled_s is not None:
            metrics.request_inference_time_seconds.observe(clock.last_token_s - clock.scheduled_s)
        if num_tokens > 1:
            metrics.request_time_per_output_token_seconds.observe(decode_s / (num_tokens - 1))
