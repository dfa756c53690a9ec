"""The names of tensors as files have them, resolved to those that a model's weights are made from.

A name that the model has is taken as it is. The others are read by the rules below, which are those of transformers
and of what wraps its models. Two names that mean one tensor must have equal bytes, which the load compares. What
remains is left out if it changes no result, and refused otherwise.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from service.errors import MalformedCheckpoint
from service.models.stored.layers import StoredTensor
from service.models.weight_spec import WeightSpec, bare_name, name_in_part
from service.weights.left_out import ANOTHER_MODEL, MTP, NEXT_TOKENS, UNUSED, ZERO_BIASES, beside, foreign, harmless


class Rule(NamedTuple):
    """Segments of names that say how a model was wrapped, and not what a tensor is."""

    pattern: str
    writer: str
    source: str


# Removed wherever they stand.
INSIDE = (
    Rule("_orig_mod", "torch.compile", "torch `_dynamo/eval_frame.py` (OptimizedModule)"),
    Rule("_fsdp_wrapped_module", "FSDP", "torch `distributed/fsdp/_common_utils.py` (FSDP_WRAPPED_MODULE)"),
    Rule("_fpw_module", "FSDP of PyTorch 1", "torch 1.12 `distributed/fsdp/flatten_params_wrapper.py`"),
    Rule(
        "_checkpoint_wrapped_module",
        "activation checkpointing",
        "torch `distributed/algorithms/_checkpoint/checkpoint_wrapper.py` (_CHECKPOINT_WRAPPED_MODULE)",
    ),
    Rule("base_layer", "PEFT", "peft `tuners/tuners_utils.py` (BaseTunerLayer)"),
    Rule(r"modules_to_save\.[^.]+", "PEFT", "peft `utils/other.py` (ModulesToSaveWrapper)"),
)
# Removed at the beginning, as often as they stand there.
LEADING = (
    Rule("module", "DataParallel, DDP, DeepSpeed, AveragedModel", "torch `nn/parallel/distributed.py`"),
    Rule("_forward_module|_original_module", "Lightning Fabric", "lightning `fabric/wrappers.py` (_FabricModule)"),
    Rule(r"base_model\.model", "PEFT", "peft `peft_model.py` (PeftModel)"),
    Rule("state_dict|model_state_dict", "checkpoints of training", "lightning `trainer/connectors`"),
)
# The ends of names of norms in TensorFlow's BERT.
# Source: transformers `modeling_utils.py` (_fix_state_dict_key_on_load)
ENDS = ((".gamma", ".weight"), (".beta", ".bias"))
# Any other common beginning is removed too, or added: that of a bare model under a head, and the reverse. Source:
# transformers `modeling_utils.py` (base_model_prefix); and `bare_name` for parts whose names have changed.

_INSIDE = re.compile(rf"(?:(?<=\.)|^)(?:{'|'.join(rule.pattern for rule in INSIDE)})\.")
_LEADING = re.compile(rf"^(?:(?:{'|'.join(rule.pattern for rule in LEADING)})\.)+")
_LAYER = re.compile(r"^((?:.*?\.)?(?:layers|layer|h|blocks)\.)(\d+)\.")
NUM_SHOWN = 3


@dataclass(frozen=True)
class FoundTensor:
    """A tensor of a checkpoint as its file names it."""

    file: str
    name: str


@dataclass(frozen=True)
class Resolution:
    """Which tensors of the files are those of a model."""

    tensors: Mapping[str, FoundTensor]  # by the model's name
    copies: Sequence[tuple[str, FoundTensor]]  # further ones that mean a tensor of the model, whose name comes first
    left_out: Mapping[str, Sequence[str]]  # names in the files, by what they are
    prefix: str  # of the names in the files, before those of the bare model


type Zeros = Callable[[Sequence[FoundTensor]], Set[FoundTensor]]  # those of some tensors that hold nothing but zeros


def no_zeros(tensors: Sequence[FoundTensor]) -> Set[FoundTensor]:
    """Say of no tensor that it holds nothing but zeros."""
    return frozenset()


class _Match(NamedTuple):
    prefix: str
    name: str  # of the model


def resolve(
    uri: str,
    specs: Sequence[WeightSpec],
    files: Mapping[str, Iterable[str]],
    *,
    optional: Set[str] = frozenset(),
    zeros: Zeros = no_zeros,
) -> Resolution:
    """Find the tensors of a model among those of a checkpoint's files.

    Args:
        uri: the checkpoint's address, for messages.
        specs: the model's weights.
        files: the names of the tensors of each file.
        optional: tensors of the model that may be missing.
        zeros: asked of biases that the model does not have, which change nothing if they are zero.

    Raises:
        MalformedCheckpoint: a tensor is missing, two models fit, or a tensor changes results and has no place.
    """
    sources = [source for spec in specs for source in spec.sources]
    expected = {tensor.name: tensor for source in sources for tensor in source.stored}
    others = {other: source.name for source in sources for other in source.also if other not in expected}
    known = expected.keys() | others
    keys = {bare_name(name): name for name in known}
    exact: dict[FoundTensor, _Match] = {}
    rest: dict[FoundTensor, _Match | None] = {}
    for file, names in files.items():
        for name in names:
            if name in known:
                exact[FoundTensor(file, name)] = _Match(name.removesuffix(bare_name(name)), name)
            else:
                rest[FoundTensor(file, name)] = _match(_unwrapped(name), keys)
    matched = exact | {found: match for found, match in rest.items() if match is not None}
    prefix = _trunk(uri, matched.values(), exact.values())
    tensors: dict[str, FoundTensor] = {}
    copies: list[tuple[str, FoundTensor]] = []
    for found, match in matched.items():
        if found not in exact and not prefix.startswith(match.prefix):
            continue
        if match.name in tensors:
            copies.append((match.name, found))
        else:
            tensors[match.name] = found
    for other, name in others.items():
        if other in tensors:
            copies = [(name if of == other else of, found) for of, found in copies]
            if name in tensors:
                copies.append((name, tensors.pop(other)))
            else:
                tensors[name] = tensors.pop(other)
    needed = [tensor for tensor in expected.values() if tensor.name not in optional]
    _check_missing(uri, needed, tensors, [found.name for found in (*exact, *rest)])
    placed = {*tensors.values(), *(found for _, found in copies)}
    spare = {found.name: match for found, match in rest.items() if found not in placed}
    biases = _biases([found for found in rest if found not in placed], keys)
    known_as = dict.fromkeys((found.name for found in zeros(biases)), ZERO_BIASES) if biases else dict[str, str]()
    left_out = _left_out(uri, spare, keys.keys(), prefix, known_as | dict.fromkeys(_unused(spare, specs), UNUSED))
    return Resolution({name: tensors[name] for name in expected if name in tensors}, copies, left_out, prefix)


def shown(names: Sequence[str]) -> str:
    """Return some names of many, and how many there are."""
    more = len(names) - NUM_SHOWN
    return ", ".join(names[:NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")


def without_wrappers(name: str) -> str:
    """Return a name without the segments of wrappers that stand anywhere."""
    return _INSIDE.sub("", name)


def _unwrapped(name: str) -> str:
    """Return a name without the segments of wrappers."""
    unwrapped = _LEADING.sub("", without_wrappers(name))
    return unwrapped if "/" not in name else name  # the modules after the model are saved by themselves


def _match(name: str, keys: Mapping[str, str]) -> _Match | None:
    """Return what precedes the longest end of a name that the model has, and the model's name of it."""
    start = 0
    while True:
        rest = name[start:]
        for spelled in _spelled(rest):
            if spelled in keys:
                return _Match(name[:start], keys[spelled])
        start = name.find(".", start) + 1
        if start == 0 or "/" in rest:
            return None


def _spelled(name: str) -> Iterator[str]:
    """Return the ways to write a name of the bare model."""
    yield name
    if (inner := name_in_part(name)) != name:
        yield inner
    for old, new in ENDS:
        if name.endswith(old):
            yield name.removesuffix(old) + new


def _trunk(uri: str, matched: Iterable[_Match], exact: Iterable[_Match]) -> str:
    """Return what precedes most names of the model.

    Raises:
        MalformedCheckpoint: two beginnings precede as many, and neither is that of the model itself.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for match in matched:
        found[match.prefix].add(match.name)
    if not found:
        return ""
    own: dict[str, set[str]] = defaultdict(set)
    for match in exact:
        own[match.prefix].add(match.name)
    # Of two whole models the one with the model's own names is meant, and of two such the longer names.
    ranked = sorted(found, key=lambda prefix: (len(found[prefix]), len(own.get(prefix, ())), len(prefix)), reverse=True)
    first = ranked[0]
    rivals = [
        prefix
        for prefix in ranked[1:]
        if found[prefix] == found[first] and not first.startswith(prefix) and not own.get(first)
    ]
    if rivals:
        one, other = sorted((first, rivals[0]))
        reason = (
            f"and all others of the model are there twice, with names that begin with {one!r} and with {other!r}. "
            "Save the one to serve by itself."
        )
        raise MalformedCheckpoint(uri, min(found[first]), reason)
    return first


def _check_missing(
    uri: str, expected: Iterable[StoredTensor], tensors: Mapping[str, FoundTensor], names: Sequence[str]
) -> None:
    missing = [tensor for tensor in expected if tensor.name not in tensors]
    if not missing:
        return
    first = missing[0]
    reason = f"is missing. config.json asks for it in shape {list(first.shape)}."
    if len(missing) > 1:
        reason += f" {len(missing)} tensors are missing."
    alien = foreign(names)
    if alien is not None:
        reason += f" The files have {alien[0]!r}, which is {alien[1]}."
    elif names:
        begin = _common_beginning(names)
        all_of = f"all named {begin!r} and so on, such as" if begin else "such as"
        reason += f" The files have {len(names)} tensors, {all_of} {shown(names)}."
    else:
        reason += " The files have no tensors."
    raise MalformedCheckpoint(uri, first.name, reason)


def _common_beginning(names: Sequence[str]) -> str:
    """Return the segments with which all names begin."""
    first, last = min(names).split("."), max(names).split(".")
    same = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    return "".join(f"{segment}." for segment in first[:same])


def _biases(spare: Iterable[FoundTensor], keys: Iterable[str]) -> list[FoundTensor]:
    """Return the biases among tensors whose module the model has without one."""
    found = [tensor for tensor in spare if tensor.name.endswith(".bias")]
    if not found:
        return found
    modules = {module: module for module, _, _ in (key.rpartition(".") for key in keys)}
    return [tensor for tensor in found if _match(_unwrapped(tensor.name.removesuffix(".bias")), modules) is not None]


def _unused(spare: Iterable[str], specs: Iterable[WeightSpec]) -> list[str]:
    """Return the tensors of modules that the model has and does not run."""
    modules = {bare_name(module): module for spec in specs for module in spec.unused}
    if not modules:
        return []
    return [name for name in spare if _match(_unwrapped(name.rpartition(".")[0]), modules) is not None]


def _left_out(
    uri: str, spare: Mapping[str, _Match | None], keys: Set[str], prefix: str, known_as: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the tensors that are left out, by what they are.

    Raises:
        MalformedCheckpoint: a tensor changes results and has no place in the model.
    """
    left_out: dict[str, list[str]] = {}
    if not spare:
        return left_out
    modules = {bare.partition(".")[0] for bare in keys}
    num_layers: dict[str, int] = {}
    for bare in keys:
        if layer := _LAYER.match(bare):
            num_layers[layer[1]] = max(num_layers.get(layer[1], 0), int(layer[2]) + 1)
    further = _further_layers(spare, prefix, num_layers)
    refused = []
    for name, match in spare.items():
        what = _what(name, match, modules, prefix) or further.get(name) or known_as.get(name)
        if what is None:
            refused.append(name)
        else:
            left_out.setdefault(what, []).append(name)
    if refused:
        raise MalformedCheckpoint(uri, refused[0], _why_refused(refused, prefix, num_layers))
    return left_out


def _what(name: str, match: _Match | None, modules: Set[str], prefix: str) -> str | None:
    """Return what a tensor is that changes no result; None if it may change some."""
    unwrapped = _unwrapped(name)
    if (what := harmless(unwrapped)) is not None:
        return what
    if foreign([name]) is not None:
        return None
    begins = [prefix[: match.end()] for match in re.finditer(r"^|\.", prefix)]
    beginnings = [begin for begin in begins if unwrapped.startswith(begin)]
    if any(unwrapped.removeprefix(begin).partition(".")[0] in modules for begin in beginnings):
        return None
    if (what := beside(unwrapped.removeprefix(max(beginnings, key=len)))) is not None:
        return what
    return ANOTHER_MODEL if match is not None or not unwrapped.startswith(prefix) else None


def _further_layers(spare: Iterable[str], prefix: str, num_layers: Mapping[str, int]) -> dict[str, str]:
    """Return the tensors of layers after the last that predict further tokens."""
    by_layer: dict[str, list[str]] = defaultdict(list)
    for name in spare:
        layer = _LAYER.match(_unwrapped(name).removeprefix(prefix))
        if layer and int(layer[2]) >= num_layers.get(layer[1], int(layer[2]) + 1):
            by_layer[layer[0]].append(name)
    return {
        name: NEXT_TOKENS for names in by_layer.values() if any(MTP.search(name) for name in names) for name in names
    }


def _why_refused(refused: Sequence[str], prefix: str, num_layers: Mapping[str, int]) -> str:
    reason = f"{len(refused)} tensors such as this one have no place in the model that config.json describes, so "
    reason += "the answers would be wrong."
    alien = foreign(refused)
    if alien is not None:
        return f"{reason} {alien[0]!r} is {alien[1]}."
    layers = [_LAYER.match(_unwrapped(name).removeprefix(prefix)) for name in refused]
    beyond = [int(layer[2]) for layer in layers if layer and int(layer[2]) >= num_layers.get(layer[1], 0)]
    if beyond and len(beyond) == len(refused):
        return f"{reason} The files have {max(beyond) + 1} layers, and config.json fewer."
    if all(name.endswith(".bias") for name in refused):
        return f"{reason} They are biases, and not zero; check the settings of biases there."
    return f"{reason} Check model_type and the bias, norm and layer settings there."
