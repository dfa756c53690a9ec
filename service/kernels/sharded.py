"""Any attention kernel on several devices: each runs it over its own key-value heads, and they say nothing meanwhile.

Attention is independent for each key-value head, so the kernel sees a smaller number of heads and nothing else; what
splits a program over devices by itself would have to look inside, which it cannot do with a kernel of ours.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import DTypeLike

from service.device.mesh import MESH_AXES, DeviceMesh
from service.kernels.attention import AttentionKernel, KVHeads, LayerCache, QueryHeads, Scoring
from service.kernels.paging import CacheLayout, Paging, RowPages

WHOLE = PartitionSpec()
HEADS = PartitionSpec(None, None, MESH_AXES["kv_head"])  # [seq, token, kv_head, ...]


@dataclass(frozen=True)
class ShardedAttention:
    """Calls an `AttentionKernel` on each device; the number of key-value heads must divide."""

    kernel: AttentionKernel
    mesh: DeviceMesh

    @property
    def cache_sharding(self) -> NamedSharding:
        """Where every array of a cache lies."""
        return NamedSharding(self.mesh.named, self._cache)

    def initial_cache(self, layout: CacheLayout, *, num_kv_heads: int, head_dim: int, dtype: DTypeLike) -> LayerCache:
        """Return the empty cache of one layer; each device makes its own part."""
        num_local = num_kv_heads // self.mesh.num_devices
        make = functools.partial(
            self.kernel.initial_cache, layout, num_kv_heads=num_local, head_dim=head_dim, dtype=dtype
        )
        return self._on_each(make, (), self._cache)()

    def attend(
        self,
        query: QueryHeads,
        new_keys: KVHeads,
        new_values: KVHeads,
        cache: LayerCache,
        paging: Paging,
        *,
        scoring: Scoring,
    ) -> tuple[QueryHeads, LayerCache]:
        """Attend on each device with its heads."""
        attend = functools.partial(self.kernel.attend, scoring=scoring)
        on_each = self._on_each(attend, (HEADS, HEADS, HEADS, self._cache, WHOLE), (HEADS, self._cache))
        return on_each(query, new_keys, new_values, cache, paging)

    def save(self, cache: LayerCache, pages: RowPages) -> LayerCache:
        """Copy pages out of a slot's row, on each device what it has of them."""
        return self._on_each(self.kernel.save, (self._cache, WHOLE), self._cache)(cache, pages)

    def restore(self, cache: LayerCache, pages: RowPages) -> LayerCache:
        """Copy pages into a slot's row, on each device what it has of them."""
        return self._on_each(self.kernel.restore, (self._cache, WHOLE), self._cache)(cache, pages)

    @property
    def _cache(self) -> PartitionSpec:
        return PartitionSpec(*(None,) * self.kernel.kv_head_axis, MESH_AXES["kv_head"])

    def _on_each(self, function: Callable[..., Any], arguments: Any, results: Any) -> Callable[..., Any]:
        # A kernel written by hand does not tell which of its results differ between devices, so nothing is checked.
        return jax.shard_map(function, mesh=self.mesh.named, in_specs=arguments, out_specs=results, check_vma=False)
