"""Experts that are stacked in one tensor, which stands for those of each expert.

transformers 5 keeps experts so in memory. It saves them as its older releases do, but `torch.save`, a wrapper of
training and Levanter's export write the names that are in memory.

| family | in memory | as it is saved |
|---|---|---|
| Mixtral | `mlp.experts.gate_up_proj`, `mlp.gate` | `block_sparse_moe.experts.N.w1`, `.w3`, `block_sparse_moe.gate` |
| Qwen3 MoE | `mlp.experts.gate_up_proj` | `mlp.experts.N.gate_proj`, `.up_proj` |
| Hero | `mlp.experts.gate_proj`, `.up_proj` | the same |
| Granite MoE | `block_sparse_moe.experts.gate_up_proj`, `router` | `block_sparse_moe.input_linear`, `router.layer` |

Source: transformers `conversion_mapping.py` (mixtral, qwen2_moe, granitemoe); Levanter `models/mixtral.py`
(MixtralMoEMlp.to_state_dict), `models/hero_serialization.py`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from service.errors import MalformedCheckpoint
from service.weights.names import without_wrappers
from service.weights.safetensors import DTYPES, TensorEntry

# Of each family: the end of a name, and those of the tensors that it holds, one after the other for each expert.
type Layout = Mapping[str, tuple[str, ...]]
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
LAYOUTS: tuple[Layout, ...] = (
    {
        ".mlp.experts.gate_up_proj": (
            ".block_sparse_moe.experts.{}.w1.weight",
            ".block_sparse_moe.experts.{}.w3.weight",
        ),
        ".mlp.experts.down_proj": (".block_sparse_moe.experts.{}.w2.weight",),
        ".mlp.gate.weight": (".block_sparse_moe.gate.weight",),
    },
    {
        ".mlp.experts.gate_up_proj": (".mlp.experts.{}.gate_proj.weight", ".mlp.experts.{}.up_proj.weight"),
        ".mlp.experts.down_proj": (".mlp.experts.{}.down_proj.weight",),
        **{f".mlp.experts.{name}.weight": (f".mlp.experts.{{}}.{name}.weight",) for name in _PROJECTIONS},
    },
    {
        ".block_sparse_moe.experts.gate_up_proj": (".block_sparse_moe.input_linear.weight",),
        ".block_sparse_moe.experts.down_proj": (".block_sparse_moe.output_linear.weight",),
        ".block_sparse_moe.router.weight": (".block_sparse_moe.router.layer.weight",),
    },
)
_ENDS = tuple((tuple(end.format(0) for ends in layout.values() for end in ends), layout) for layout in LAYOUTS)
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def layout_of(names: Iterable[str]) -> Layout | None:
    """Return how the experts of a model may be stacked, by the names of its tensors; None if it has none."""
    every = tuple(names)
    return next((layout for ends, layout in _ENDS if any(name.endswith(ends) for name in every)), None)


def single_names(names: Iterable[str], model: Iterable[str]) -> list[str]:
    """Return names with those of single experts in place of stacked ones.

    Args:
        names: of the tensors of a checkpoint.
        model: of the tensors of its model.
    """
    names, model = list(names), tuple(model)
    layout = layout_of(model)
    if layout is None or not any(_holds(name, layout)[1] for name in names):
        return names
    count = 1 + max((int(found[1]) for name in model if (found := _EXPERT.search(name))), default=0)
    single: list[str] = []
    for name in names:
        layer, ends = _holds(name, layout)
        single += [layer + end for end in _numbered(ends, count)] if ends else [name]
    return list(dict.fromkeys(single))


def with_single_experts(uri: str, entries: Mapping[str, TensorEntry], layout: Layout) -> dict[str, TensorEntry]:
    """Describe the parts of stacked tensors of one object as tensors of their own.

    Raises:
        MalformedCheckpoint: a checkpoint has stacked and single tensors of a layer.
    """
    single: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        for part, found in _parts(name, entry, layout):
            if part in single or (part != name and part in entries):
                raise MalformedCheckpoint(uri, entry.file, f"{part!r} is in {name!r} too.")
            single[part] = found
    return single


def _holds(name: str, layout: Layout) -> tuple[str, tuple[str, ...]]:
    """Return what precedes the end of a name that the layout has, and what its tensor holds; nothing for others."""
    inner = without_wrappers(name)
    end = next((end for end in layout if inner.endswith(end)), None)
    return ("", ()) if end is None else (inner.removesuffix(end), layout[end])


def _numbered(ends: tuple[str, ...], count: int) -> list[str]:
    return [end.format(expert) for expert in range(count) for end in ends] if "{}" in ends[0] else list(ends)


def _parts(name: str, entry: TensorEntry, layout: Layout) -> Iterable[tuple[str, TensorEntry]]:
    layer, ends = _holds(name, layout)
    if not ends:
        return [(name, entry)]
    if "{}" not in ends[0]:
        return [(f"{layer}{ends[0]}", entry)]
    dtype = DTYPES.get(entry.dtype_name)
    is_stack = len(entry.shape) == 3 and entry.strides is None
    if dtype is None or not is_stack or entry.shape[1] % len(ends):
        return [(name, entry)]
    count, rows, columns = entry.shape
    shape = (rows // len(ends), columns)
    num_bytes = math.prod(shape) * dtype.itemsize
    return [
        (
            f"{layer}{end}",
            replace(entry, shape=shape, begin=begin, end=begin + num_bytes),
        )
        for place, end in enumerate(_numbered(ends, count))
        for begin in [entry.begin + num_bytes * place]
    ]
