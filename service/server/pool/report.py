"""The state of a pool's model for /admin/models and /admin/stats."""

import time
from typing import Any

from service.catalogue.entry import ModelEntry
from service.observability.model_metrics import ModelMetrics
from service.server.pool.pooled_model import PooledModel, State

# What operators see, who see `is_leaving` beside it.
STATES = {
    State.LOADING: "loading",
    State.CANCELLING: "loading",
    State.READY: "ready",
    State.LEAVING: "ready",
    State.UNLOADING: "unloading",
    State.GONE: "available",
}


def model_report(entry: ModelEntry, model: PooledModel | None, metrics: ModelMetrics | None) -> dict[str, Any]:
    """Return the state of a model as a JSON object.

    Args:
        entry: the model's entry in the catalogue.
        model: the model's state in the pool; None if it was never requested.
        metrics: the model's metrics; None if it was never requested.
    """
    known = PooledModel(entry) if model is None else model
    newest, last, now_s = known.newest, known.last, time.monotonic()
    is_in_memory = newest is not None and newest.is_in_memory
    loading = None if newest is None else newest.loading
    failure = None
    if known.failure is not None:
        failure = {"reason": known.failure[0], "seconds_ago": round(now_s - known.failure[1], 1)}
    return {
        "id": entry.name,
        "aliases": list(entry.aliases),
        "uri": known.entry.uri,
        "adapter_uri": known.entry.adapter_uri,
        "state": STATES[State.GONE if newest is None else newest.state],
        "is_leaving": newest is not None and newest.state is State.LEAVING,
        "keep_loaded": entry.keeps_loaded,
        "memory_bytes": sum(residence.num_bytes for residence in known.residences),
        # Without the hold of a start that is not complete.
        "open_requests": sum(residence.num_open for residence in known.residences)
        - (is_in_memory and loading is not None),
        "waiting_requests": len(known.waiters),
        "last_used_at": None if last is None else round(time.time() - (now_s - last.last_used_s), 3),
        "prompt_tokens": _count(metrics, "levserve_prompt_tokens_total"),
        "generation_tokens": _count(metrics, "levserve_generation_tokens_total"),
        "draft_tokens": _count(metrics, "levserve_spec_decode_num_draft_tokens_total"),
        "accepted_tokens": _count(metrics, "levserve_spec_decode_num_accepted_tokens_total"),
        "share_of_read_speed": None if metrics is None else metrics.load.share_of_read_speed,
        "is_complete": is_in_memory and loading is None,  # whether nothing is left to compile
        "starts": 0 if last is None else last.number,
        "start_seconds": None if last is None else round(last.load_s, 3),
        "progress": loading.progress() if loading is not None and not is_in_memory else None,
        "failure": failure,
    }


def _count(metrics: ModelMetrics | None, name: str) -> int:
    return 0 if metrics is None else int(metrics.value(name))
