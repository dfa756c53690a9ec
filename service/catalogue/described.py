"""MODELS_CONFIG: a YAML file that describes models. Errors in it name the line.

models:
  - name: org/chat
    aliases: [chat]
    uri: gs://bucket/models/org-chat     # default: the listed folder of this name
    generations: {model.safetensors: 1712345678901234}
    adapter: gs://bucket/adapters/chat   # merged into the model
    base: org/base                       # instead of a uri: the adapter takes a slot of this model (MAX_LORAS)
    max_model_len: 4096
    defaults: {temperature: 0.2, max_tokens: 512}
    preload: true
"""

from collections.abc import Iterator
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.catalogue.entry import ModelEntry, Pin, name_fault, pinned_uri
from service.catalogue.names import hyphenated
from service.errors import SettingsError
from service.settings import Dtype, KvDtype, ReasoningParser, ToolCallParser, WeightStorage
from service.storage.location import GcsLocation, HubLocation, parse_location
from service.text.generation_defaults import MAX_TOP_K, RANGES, GenerationDefaults

VARIABLE = "MODELS_CONFIG"
MAX_BYTES = 4 * 1024 * 1024


def _number(option: str, meaning: str) -> Any:
    lowest, highest = RANGES[option]
    return Field(default=None, ge=lowest, le=highest, allow_inf_nan=False, description=meaning)


class DescribedDefaults(BaseModel):
    """Defaults for requests that omit an option."""

    model_config = ConfigDict(extra="forbid", strict=True)

    temperature: float | None = _number("temperature", "Divides the logits; 0 always takes the likeliest token.")
    top_p: float | None = _number("top_p", "Keep the likeliest tokens whose probabilities add up to this.")
    top_k: int | None = Field(
        default=None, ge=-1, le=MAX_TOP_K, description="Keep this number of the likeliest tokens; 0 or -1 keeps all."
    )
    min_p: float | None = _number("min_p", "Keep tokens at least this likely, relative to the likeliest.")
    repetition_penalty: float | None = _number("repetition_penalty", "Divides the logits of tokens that occurred.")
    max_tokens: int | None = Field(default=None, ge=1, description="Tokens of a completion.")


class DescribedModel(BaseModel):
    """The YAML keys of a model."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    name: str = Field(description="The name that requests send as `model`.")
    aliases: list[str] = Field(default=[], description="Further names.")
    uri: str | None = Field(
        default=None,
        description="The checkpoint: `gs://…`, `hf://…` or a path. Unset: the folder of this name in GCS_BUCKET or "
        "CATALOGUE_URI.",
    )
    revision: str | None = Field(default=None, description="The revision of a repository of the Hub.")
    generations: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default={}, description="Generations of objects in the bucket, by their names below `uri`."
    )
    tokenizer: str | None = Field(default=None, description="The tokenizer, if kept elsewhere.")
    chat_template: str | None = Field(default=None, description="A file, or the template itself.")
    tool_call_parser: ToolCallParser | None = Field(default=None, description="In place of TOOL_CALL_PARSER.")
    reasoning_parser: ReasoningParser | None = Field(default=None, description="In place of REASONING_PARSER.")
    adapter: str | None = Field(default=None, description="An adapter (LoRA), which is merged into the model.")
    base: str | None = Field(
        default=None,
        description="With `adapter`, in place of `uri`: the name of the model that the adapter updates in a slot "
        "(MAX_LORAS).",
    )
    dtype: Dtype | None = Field(default=None, description="In place of DTYPE.")
    quantization: WeightStorage | None = Field(default=None, description="In place of QUANTIZATION.")
    kv_dtype: KvDtype | None = Field(default=None, description="In place of KV_DTYPE.")
    max_model_len: int | None = Field(
        default=None, ge=16, description="Context length in tokens, prompt and completion together."
    )
    defaults: DescribedDefaults = Field(
        default=DescribedDefaults(), description="Defaults for requests that omit an option; see below."
    )
    preload: bool = Field(default=False, description="Whether the start loads the model, before any request.")
    keep_loaded: bool = Field(default=False, description="Whether the model is never unloaded for another one.")
    memory: float | None = Field(
        default=None, gt=0, le=1, description="Its share of the device memory. Unset: 1 / MAX_CACHED_MODELS."
    )
    pin: Pin | None = Field(
        default=None,
        description="Of a Levanter run: `step` stays at the step that was loaded, `latest` follows the newest one.",
    )


def read_models(text: str, where: str) -> tuple[ModelEntry, ...]:
    """Parse the models in a YAML file.

    Args:
        text: the content of the file.
        where: the address of the file, for error messages.

    Raises:
        SettingsError: the file is not YAML, or a key is unknown, duplicate, malformed or contradicts another.
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
                conflict = "is used twice" if other == name else f"and {other!r} are the same folder of a bucket"
                raise _fault(where, node, f"the name {name!r} {conflict}")
            taken[hyphenated(name)] = name
    return tuple(entry for _, entry in read)


def _models_node(root: Any, where: str) -> yaml.SequenceNode:
    keys = dict(_items(root, where)) if isinstance(root, yaml.MappingNode) else {}
    if [*keys] != ["models"] or not isinstance(keys["models"], yaml.SequenceNode):
        line = f" line {root.start_mark.line + 1}:" if root is not None else ""
        raise SettingsError(VARIABLE, f"{where}:{line} should have a single key, 'models', with a list.")
    return keys["models"]


def _read_model(loader: Any, node: yaml.Node, where: str) -> ModelEntry:
    if not isinstance(node, yaml.MappingNode):
        raise _fault(where, node, "a model is a mapping with a 'name'")
    lines = dict(_lines(node, where))
    try:
        model = DescribedModel.model_validate(loader.construct_document(node))
        return _entry(model)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = tuple(str(part) for part in first["loc"][:2])
        key_node = lines.get(path) or lines.get(path[:1]) or node
        raise _fault(where, key_node, f"{'.'.join(path)}: {first['msg']}") from error
    except SettingsError as error:
        raise _fault(where, lines.get((error.variable,), node), str(error)) from error


def _lines(node: yaml.MappingNode, where: str) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """Yield the values of a mapping and of nested mappings by their keys."""
    for key, value in _items(node, where):
        yield (key,), value
        if isinstance(value, yaml.MappingNode):
            yield from (((key, below), nested) for below, nested in _items(value, where))


def _entry(model: DescribedModel) -> ModelEntry:
    if model.uri is None and model.revision is not None:
        raise SettingsError("revision", "needs a 'uri' on the Hub, but this model has none.")
    if model.base is not None and (model.adapter is None or model.uri is not None):
        raise SettingsError("base", "is the model that an 'adapter' updates, and takes the place of a 'uri'.")
    if model.adapter is not None:
        parse_location(model.adapter, "adapter")
    is_run = model.uri is not None and model.pin is not None
    if is_run and isinstance(parse_location(model.uri or "", "uri"), HubLocation):
        raise SettingsError("pin", "applies to Levanter runs; for a repository of the Hub, use 'revision'.")
    if is_run and model.generations:
        raise SettingsError("pin", "contradicts 'generations', which pin the files of a single step.")
    if model.generations and not isinstance(parse_location(model.uri or "/", "uri"), GcsLocation):
        raise SettingsError("generations", "need a 'uri' of a bucket (gs://…), but this model has none.")
    max_tokens = model.defaults.max_tokens
    if model.max_model_len is not None and max_tokens is not None and max_tokens >= model.max_model_len:
        reason = (
            f"has max_tokens {max_tokens}, which leaves no room for a prompt in max_model_len {model.max_model_len}."
        )
        raise SettingsError("defaults", reason)
    return ModelEntry(
        name=model.name,
        aliases=tuple(model.aliases),
        uri="" if model.uri is None else pinned_uri(model.uri, model.revision, "uri"),
        pin=model.pin or "step",
        is_run=is_run,
        generations=model.generations,
        tokenizer_uri=model.tokenizer,
        chat_template=model.chat_template,
        tool_call_parser=model.tool_call_parser,
        reasoning_parser=model.reasoning_parser,
        adapter_uri=model.adapter,
        base=model.base,
        dtype=model.dtype,
        quantization=model.quantization,
        kv_dtype=model.kv_dtype,
        max_model_len=model.max_model_len,
        defaults=GenerationDefaults(**model.defaults.model_dump()),
        is_preloaded=model.preload,
        keeps_loaded=model.keep_loaded,
        memory_share=model.memory,
    )


def _items(node: yaml.MappingNode, where: str) -> Iterator[tuple[str, yaml.Node]]:
    """Yield keys and values; refuse duplicate keys, which PyYAML silently accepts."""
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _fault(where, key, "keys must be scalars")
        if key.value in seen:
            raise _fault(where, key, f"the key {key.value!r} is duplicate")
        seen.add(key.value)
        yield key.value, value


def _fault(where: str, node: yaml.Node, reason: str) -> SettingsError:
    return SettingsError(VARIABLE, f"{where}, line {node.start_mark.line + 1}: {reason.rstrip('.')}.")
