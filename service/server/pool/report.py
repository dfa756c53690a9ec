"""The state of a pool's model for /admin/models and /admin/stats."""

import time
from typing import Any

from service.catalogue.entry import ModelEntry
from service.observability.model_metrics import ModelMetrics
from service.server.pool.pooled_model import PooledModel


def model_report(
    entry: ModelEntry, model: PooledModel | None, metrics: ModelMetrics | None, now_s: float
) -> dict[str, Any]:
    """Return the state of a model as a JSON object; the pool's lock is held.

    Args:
        entry: the model's entry in the catalogue.
        model: the model's state in the pool; None if it was never requested.
        metrics: the model's metrics; None if it was never requested.
        now_s: the current time on the pool's clock.
    """
    known = PooledModel(entry) if model is None else model
    has_own_hold = known.is_in_memory and known.loading is not None  # held by its incomplete start
    failure = None
    if known.failure is not None:
        failure = {"reason": known.failure[0], "seconds_ago": round(now_s - known.failure[1], 1)}
    return {
        "id": entry.name,
        "aliases": list(entry.aliases),
        "uri": known.entry.uri,
        "adapter_uri": known.entry.adapter_uri,
        "state": known.reported_state,
        "is_leaving": known.is_leaving,
        "keep_loaded": entry.keeps_loaded,
        "memory_bytes": sum(version.num_bytes for version in known.versions),
        "open_requests": sum(version.num_open for version in known.versions) - has_own_hold,
        "waiting_requests": len(known.waiters),
        "last_used_at": _unix_s(known.last_used_s, now_s) if known.num_loads else None,
        "prompt_tokens": _count(metrics, "levserve_prompt_tokens_total"),
        "generation_tokens": _count(metrics, "levserve_generation_tokens_total"),
        "is_complete": known.is_in_memory and known.loading is None,  # whether nothing is left to compile
        "starts": known.num_loads,
        "start_seconds": round(known.load_s, 3) if known.num_loads else None,
        "progress": known.loading.progress() if known.is_loading and known.loading is not None else None,
        "failure": failure,
    }


def _count(metrics: ModelMetrics | None, name: str) -> int:
    return 0 if metrics is None else int(metrics.value(name))


def _unix_s(moment_s: float, now_s: float) -> float:
    return round(time.time() - (now_s - moment_s), 3)
