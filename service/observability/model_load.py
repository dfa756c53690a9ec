"""The load of each model in a few numbers, for endpoint pickers and routers that poll many times a second.

Source: https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
(the series), https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

REASONS = ("slots", "pages")  # what a waiting sequence may lack
# The numbers of engines that add up.
SUMMED = ("num_running", "num_waiting", "num_slots", "num_pages", "num_used_pages", "num_adapter_slots")
ADAPTER_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")


@dataclass
class ModelLoad:
    """Running and waiting requests and memory in use; written by the device thread, read by any."""

    num_running: int = 0  # sequences in a slot, or texts of an encoder
    num_waiting: int = 0
    lacks_slots: bool = False  # whether the waiting ones lack a slot; otherwise pages
    num_slots: int = 0
    page_size: int = 0  # tokens
    num_pages: int = 0  # 0 for a model that has no KV pages or is not loaded
    num_used_pages: int = 0
    media_usage: float = 0.0  # the share of the places for rows of media
    num_adapter_slots: int = 0
    running_adapters: tuple[str, ...] = ()  # the names of those that sequences with a slot have
    waiting_adapters: tuple[str, ...] = ()  # of those that others have
    decode_s: float = 0.0  # of a decode step, on average over the latest; 0 before there was one
    least_decode_s: float = 0.0  # in which a CPU reads the weights of one from memory; 0 where that was not measured
    updated_at: float = field(default_factory=time.time)  # Unix time, in seconds

    @property
    def kv_cache_usage(self) -> float:
        """Share of KV pages in use, 0 to 1."""
        return self.num_used_pages / self.num_pages if self.num_pages else 0.0

    @property
    def share_of_read_speed(self) -> float | None:
        """The share of the memory's speed at which decode steps read weights, more than 1 if caches hold them."""
        if self.decode_s == 0 or self.least_decode_s == 0:
            return None
        return round(self.least_decode_s / self.decode_s, 3)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The values of `ADAPTER_LABELS`."""
        return str(self.num_adapter_slots), ",".join(self.running_adapters), ",".join(self.waiting_adapters)

    @property
    def num_waiting_by_reason(self) -> dict[str, int]:
        """The waiting requests by what the first of them lacks."""
        return {reason: self.num_waiting * (self.lacks_slots == (reason == "slots")) for reason in REASONS}

    def clear(self) -> None:
        """Reset all numbers when the model is unloaded."""
        self.num_running = self.num_waiting = self.num_slots = 0
        self.page_size = self.num_pages = self.num_used_pages = self.num_adapter_slots = 0
        self.running_adapters = self.waiting_adapters = ()
        self.media_usage = self.decode_s = self.least_decode_s = 0.0


def total(loads: Sequence[ModelLoad]) -> ModelLoad:
    """Return the load of all engines of a model together."""
    if len(loads) == 1:
        return loads[0]

    def names(which: str) -> tuple[str, ...]:
        return tuple(sorted({name for load in loads for name in getattr(load, which)}))

    steps_s = [load.decode_s for load in loads if load.decode_s]
    return ModelLoad(
        **{name: sum(getattr(load, name) for load in loads) for name in SUMMED},
        lacks_slots=all(load.lacks_slots for load in loads),
        page_size=max(load.page_size for load in loads),
        media_usage=max(load.media_usage for load in loads),
        running_adapters=names("running_adapters"),
        waiting_adapters=names("waiting_adapters"),
        decode_s=sum(steps_s) / len(steps_s) if steps_s else 0.0,
        least_decode_s=max(load.least_decode_s for load in loads),
        updated_at=max(load.updated_at for load in loads),
    )


def load_exposition(loads: Mapping[str, ModelLoad]) -> bytes:
    """Return the five series per model that pickers read, in Prometheus's text format.

    `python -m benchmarks.scrape` compares the cost with that of all series.
    """
    lines: list[str] = []
    labels = {name: f'model_name="{_escaped(name)}"' for name in loads}
    for series, sample in _SAMPLES.items():
        lines.append(f"# TYPE vllm:{series} gauge")
        for name, load in loads.items():
            if (sampled := sample(load)) is not None:
                extra_labels, value = sampled
                lines.append(f"vllm:{series}{{{labels[name]}{extra_labels}}} {value}")
    lines.append("")
    return "\n".join(lines).encode()


type Sample = tuple[str, float] | None


def _cache_info(load: ModelLoad) -> Sample:
    if not load.num_pages:
        return None
    return f',block_size="{load.page_size}",num_gpu_blocks="{load.num_pages}"', 1


def _adapters(load: ModelLoad) -> Sample:
    pairs = zip(ADAPTER_LABELS, load.adapters, strict=True)
    return "".join(f',{name}="{_escaped(value)}"' for name, value in pairs), load.updated_at


_SAMPLES: Mapping[str, Callable[[ModelLoad], Sample]] = {
    "num_requests_running": lambda load: ("", load.num_running),
    "num_requests_waiting": lambda load: ("", load.num_waiting),
    "kv_cache_usage_perc": lambda load: ("", load.kv_cache_usage),
    "cache_config_info": _cache_info,
    "lora_requests_info": _adapters,
}


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
