"""MODELS_CONFIG: a YAML file that describes models. What is wrong in it is named with its line.

models:
  - name: org/chat
    aliases: [chat]
    uri: gs://bucket/models/org-chat     # without it, the listed folder of this name
    max_model_len: 4096
    preload: true
"""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.catalogue.entry import ModelEntry, Pin, name_fault, pinned_uri
from service.catalogue.names import hyphenated
from service.errors import SettingsError
from service.settings import Dtype

VARIABLE = "MODELS_CONFIG"
MAX_BYTES = 4 * 1024 * 1024


class DescribedModel(BaseModel):
    """The keys of one model."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    name: str
    aliases: list[str] = []
    uri: str | None = None
    revision: str | None = None  # of a repository of the Hub
    tokenizer: str | None = None
    dtype: Dtype | None = None
    max_model_len: int | None = Field(default=None, ge=16)
    preload: bool = False
    keep_loaded: bool = False
    memory: float | None = Field(default=None, gt=0, le=1)
    pin: Pin = "step"


def read_models(text: str, where: str) -> tuple[ModelEntry, ...]:
    """Return the models that a YAML file describes.

    Args:
        text: of the file.
        where: its address, for messages.

    Raises:
        SettingsError: it is not YAML, or a key is unknown, doubled, malformed or contradicts another; names the line.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        listed = _models_node(root, where)
        read = [(node, _read_model(loader, node, where)) for node in listed.value]
    except yaml.YAMLError as error:
        raise SettingsError(VARIABLE, f"{where} is not YAML: {error}") from error
    taken: dict[str, str] = {}
    for node, entry in read:
        for name in entry.names:
            if (fault := name_fault(name)) is not None:
                raise _fault(where, node, f"the name {name[:64]!r} {fault}")
            if (other := taken.get(hyphenated(name))) is not None:
                alike = "is there twice" if other == name else f"and {other!r} are the same folder of a bucket"
                raise _fault(where, node, f"the name {name!r} {alike}")
            taken[hyphenated(name)] = name
    return tuple(entry for _, entry in read)


def _models_node(root: Any, where: str) -> yaml.SequenceNode:
    keys = dict(_items(root, where)) if isinstance(root, yaml.MappingNode) else {}
    if [*keys] != ["models"] or not isinstance(keys["models"], yaml.SequenceNode):
        line = f" line {root.start_mark.line + 1}:" if root is not None else ""
        raise SettingsError(VARIABLE, f"{where}:{line} should hold one key, 'models', with a list.")
    return keys["models"]


def _read_model(loader: Any, node: yaml.Node, where: str) -> ModelEntry:
    if not isinstance(node, yaml.MappingNode):
        raise _fault(where, node, "a model is a mapping with a 'name'")
    lines: dict[tuple[str, ...], yaml.Node] = {(key,): value for key, value in _items(node, where)}
    try:
        model = DescribedModel.model_validate(loader.construct_document(node))
        return _entry(model)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = tuple(str(part) for part in first["loc"][:2])
        found = lines.get(path) or lines.get(path[:1]) or node
        raise _fault(where, found, f"{'.'.join(path)}: {first['msg']}") from error
    except SettingsError as error:
        raise _fault(where, lines.get(("uri",), node), str(error)) from error


def _entry(model: DescribedModel) -> ModelEntry:
    if model.uri is None and model.revision is not None:
        raise SettingsError("revision", "belongs to a 'uri' of the Hub, and this model has none.")
    if model.uri is not None and model.pin == "latest":
        raise SettingsError("pin", "'latest' follows the listing, in which a model with a 'uri' is not.")
    return ModelEntry(
        name=model.name,
        aliases=tuple(model.aliases),
        uri="" if model.uri is None else pinned_uri(model.uri, model.revision, "uri"),
        pin=model.pin,
        tokenizer_uri=model.tokenizer,
        dtype=model.dtype,
        max_model_len=model.max_model_len,
        is_preloaded=model.preload,
        keeps_loaded=model.keep_loaded,
        memory_share=model.memory,
    )


def _items(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, yaml.Node]]:
    """Yield keys and values; a key that is there twice, which YAML's reader takes in silence, is refused."""
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise _fault(where, key, f"the key {key.value!r} is there twice")
        seen.add(key.value)
        yield key.value, value


def _fault(where: str, node: yaml.Node, reason: str) -> SettingsError:
    return SettingsError(VARIABLE, f"{where}, line {node.start_mark.line + 1}: {reason.rstrip('.')}.")
