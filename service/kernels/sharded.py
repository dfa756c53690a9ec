"""Attention kernels under `shard_map`, with one shard of KV heads per device and without collectives.

Attention is independent for each KV head, so each device's kernel just sees fewer heads. The compiler's automatic
partitioning cannot be used because it cannot look inside a Pallas kernel.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import DTypeLike

from service.device.mesh import MESH_AXES, DeviceMesh
from service.kernels.attention import AttentionKernel, KVHeads, LayerCache, MemoryKernel, QueryHeads, Scoring, Sinks
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging

REPLICATED = PartitionSpec()
HEADS = PartitionSpec(None, None, MESH_AXES["kv_head"])  # [seq, token, kv_head, ...]


@dataclass(frozen=True)
class ShardedAttention:
    """Calls an `AttentionKernel` on each device; the number of KV heads must be divisible by that of devices."""

    kernel: AttentionKernel
    mesh: DeviceMesh

    @property
    def cache_sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh.named, self._cache)

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> LayerCache:
        """Return the empty cache of one layer; each device allocates its own shard."""
        num_local = num_kv_heads // self.mesh.num_devices
        make = functools.partial(
            self.kernel.initial_cache, layout, num_kv_heads=num_local, head_dim=head_dim, dtype=dtype
        )
        return self._on_each(make, (), self._cache)()

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads | None,
        new_values: KVHeads | None,
        cache: LayerCache,
        paging: Paging,
        *,
        scoring: Scoring,
        sinks: Sinks | None = None,
    ) -> tuple[QueryHeads, LayerCache]:
        specs, results = (HEADS, HEADS, HEADS, self._cache, REPLICATED), (HEADS, self._cache)
        if sinks is None:
            attend = functools.partial(self.kernel.attend, scoring=scoring)
            return self._on_each(attend, specs, results)(query, new_keys, new_values, cache, paging)

        def attend_with_sinks(*arguments: Any) -> tuple[QueryHeads, LayerCache]:
            *others, own = arguments
            return self.kernel.attend(*others, scoring=scoring, sinks=own)

        on_each = self._on_each(attend_with_sinks, (*specs, PartitionSpec(MESH_AXES["kv_head"])), results)
        return on_each(query, new_keys, new_values, cache, paging, sinks)

    def attend_memory(self, query: QueryHeads, cache: LayerCache, memory: Paging, *, scale: float) -> QueryHeads:
        assert isinstance(self.kernel, MemoryKernel), "a model with an encoder is given a kernel for its memory"
        attend = functools.partial(self.kernel.attend_memory, scale=scale)
        return self._on_each(attend, (HEADS, self._cache, REPLICATED), HEADS)(query, cache, memory)

    @property
    def _cache(self) -> PartitionSpec:
        return PartitionSpec(*(None,) * self.kernel.kv_head_axis, MESH_AXES["kv_head"])

    def _on_each(self, function: Callable[..., Any], arguments: Any, results: Any) -> Callable[..., Any]:
        # A Pallas kernel does not declare how its results vary between devices, so that cannot be checked.
        return jax.shard_map(function, mesh=self.mesh.named, in_specs=arguments, out_specs=results, check_vma=False)
