"""Read a tokenizer, its chat template and the author's sampling defaults from the files beside a checkpoint's weights.

`tokenizer.json` decides which ids come out, its post-processor included, as in transformers 5 (so `add_bos_token` of a
tokenizer_config.json changes nothing beside it). The other files add tokens and their names, the tokens that end a
text, the chat templates, and how the model's author wants it sampled. Without a tokenizer.json, a model's own
vocabulary files are read by the tokenizer's class.
Source: https://huggingface.co/docs/transformers/main_classes/tokenizer, .../main_classes/text_generation,
.../chat_templating_writing
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from service.errors import MalformedCheckpoint, MissingFile
from service.text.class_options import ClassOptions
from service.text.generation_defaults import MAX_TOP_K, RANGES, GenerationDefaults
from service.text.json_file import read_json
from service.text.special_tokens import CONFIG as TOKENIZER_CONFIG
from service.text.special_tokens import SpecialTokens, read_special_tokens
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from service.text.chat_template import ChatTemplate

logger = logging.getLogger(__name__)

CONFIG_JSON = "config.json"
# Keys of a processor, beside those of its image processor, that say how an image is written.
OF_PROCESSOR = ("image_break_token", "image_end_token")
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
# Files of tokenizers that are read nowhere here, and what they are.
OTHER_FORMATS = {
    "tekken.json": "Mistral's own format",
    "tiktoken.model": "tiktoken's own format",
}
# Options of generation_config.json that the sampler lacks, with the values at which they have no effect.
UNSUPPORTED_DEFAULTS: dict[str, tuple[Any, ...]] = {"num_beams": (None, 1), "typical_p": (None, 1)}


class TokenizerFiles(NamedTuple):
    """What a tokenizer is parsed from."""

    content: bytes  # of a tokenizer.json
    special: SpecialTokens
    options: ClassOptions = ClassOptions()

    @property
    def digest(self) -> str:
        """Names what is parsed, for tokenizers that several models use."""
        _, added, named, stated_ids, splits_special = self.special
        stated = repr(([*map(repr, added)], [*map(repr, named)], stated_ids, splits_special, self.options))
        return hashlib.sha256(hashlib.sha256(self.content).digest() + stated.encode()).hexdigest()


def parse_tokenizer(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """Return the library's tokenizer; the library holds the GIL meanwhile."""
    backend = tokenizers.Tokenizer.from_buffer(files.content)
    files.options.apply_to(backend)
    files.special.add_to(backend)
    files.options.surround(backend, files.special.names)
    return backend


def load_tokenizer(
    folder: Path,
    uri: str | None = None,
    parse: Callable[[TokenizerFiles], tokenizers.Tokenizer] = parse_tokenizer,
    *,
    config: Mapping[str, Any] = MappingProxyType({}),
    generation: Mapping[str, Any] | None = None,
    special: SpecialTokens | None = None,
) -> Tokenizer:
    """Read a tokenizer from the folder of a checkpoint.

    Args:
        folder: where the files lie.
        uri: where they came from, for error messages.
        parse: returns the tokenizer of files; it may be one that other models use, too.
        config: the model's config.json, which may lie elsewhere.
        generation: the model's generation_config.json, if it lies elsewhere.
        special: what `special_tokens_of` returns, if the caller has it.

    Raises:
        MissingFile: there is neither a tokenizer.json nor a vocabulary of a known class.
        MalformedCheckpoint: a file does not hold what its name says.
    """
    uri = uri or str(folder)
    path = folder / "tokenizer.json"
    special = special or special_tokens_of(folder, uri, config)
    options = ClassOptions.read(read_json(folder, TOKENIZER_CONFIG, uri), config)
    if path.is_file():
        content = path.read_bytes()
    else:
        from service.text.own_vocabulary import own_tokenizer  # which hardly any start needs

        made = own_tokenizer(folder, uri, config)
        if made is None:
            raise MissingFile(uri, _missing_tokenizer_message(folder))
        content, special = made, special._replace(added=(), named=(), stated_ids={})  # which it has
        options = ClassOptions(around=options.around)
    try:
        backend = parse(TokenizerFiles(content, special, options))
    except Exception as error:  # the library raises bare Exception
        raise MalformedCheckpoint(uri, path.name, f"is not a tokenizer: {error}") from error
    if generation is None:
        generation = read_json(folder, "generation_config.json", uri)
    named = backend.token_to_id(special.names.get("eos_token", ""))
    return Tokenizer(
        backend,
        special_tokens=special.names,
        eos_ids=_eos_ids(uri, generation, config) | ({named} if named is not None else set()),
        num_rows=_num_rows(config),
        defaults=_generation_defaults(uri, generation),
    )


def load_chat_template(
    folder: Path,
    special_tokens: Mapping[str, str],
    uri: str | None = None,
    *,
    is_trusted: bool,
    own: str | None = None,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> "ChatTemplate | None":
    """Read the chat template of a checkpoint; None if it has none, as base models do not.

    Its process compiles it while the caller goes on, so `wait` for it.

    Args:
        folder: where the files are.
        special_tokens: by transformers' names.
        uri: where the files came from, for error messages.
        is_trusted: whether the template is part of this package, so that it needs no process of its own.
        own: the operator's template, in place of the checkpoint's.
        tool_call_parser: the name of the format of tool calls; None to find it from the template.
        reasoning_parser: the same for reasoning.
        defaults: values of variables that a request does not set.

    Raises:
        MalformedCheckpoint: the template does not compile, or is not text.
    """
    uri = uri or str(folder)
    sources = _template_sources(folder, uri) if own is None else {"default": ("CHAT_TEMPLATE", own)}
    if not sources:
        return None
    from service.text.chat_template import DEFAULT, VARIANTS, ChatTemplate  # which a base model starts without

    stated = read_json(folder, TOKENIZER_CONFIG, uri).get("response_template")
    if stated is not None and not isinstance(stated, dict):
        logger.warning("tokenizer_config.json: 'response_template' is no object; not used")

    def compiled(name: str, **variants: ChatTemplate) -> ChatTemplate:
        file, source = sources[name]
        return ChatTemplate(
            source,
            special_tokens,
            uri=uri,
            file=file,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            response_template=stated if isinstance(stated, dict) else {},
            defaults=defaults,
            is_isolated=not is_trusted or own is not None,
            variants=variants,
        )

    return compiled(DEFAULT, **{name: compiled(name) for name in VARIANTS if name in sources})


def end_ids(tokenizer: Tokenizer, template: "ChatTemplate") -> frozenset[int]:
    """Return the tokens that end an answer: a checkpoint's, and those of its format whatever the checkpoint says."""
    ends, others = (set(map(tokenizer.id_of, marks)) for marks in (template.format.ends, template.format.goes_on))
    return frozenset(token_id for token_id in (tokenizer.eos_ids | ends) - others if token_id is not None)


def read_preprocessor(folder: Path, uri: str) -> Mapping[str, Any]:
    """Return what a checkpoint says of how images or sound are prepared; empty if it says nothing.

    Raises:
        MalformedCheckpoint: a file is not a JSON object.
    """
    # transformers writes one file for all parts of a processor since version 5.
    whole = read_json(folder, "processor_config.json", uri)
    nested = whole.get("image_processor")
    found = nested if isinstance(nested, dict) else read_json(folder, "preprocessor_config.json", uri)
    return {**found, **{key: whole[key] for key in OF_PROCESSOR if key in whole}} if found else found


def _template_sources(folder: Path, uri: str) -> dict[str, tuple[str, str]]:
    """Return the templates of a checkpoint by name, each with the file that has it; empty if no file has a template.

    Source: https://huggingface.co/docs/transformers/chat_templating_multiple_templates,
    transformers' tokenization_utils_base.py (_from_pretrained: files before the configuration)
    """
    found: dict[str, tuple[str, str]] = {}
    for file in ("tokenizer_config.json", "chat_template.json"):  # the later file wins
        stated = read_json(folder, file, uri).get("chat_template")
        if stated is not None:
            found = {name: (file, source) for name, source in _named_templates(stated, uri, file).items()}
    own = {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        own["default"] = folder / TEMPLATE
        found = {}
    for name, path in own.items():
        file = path.relative_to(folder).as_posix()
        try:
            found[name] = file, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MalformedCheckpoint(uri, file, "is not UTF-8 text") from error
    if found and "default" not in found:
        if len(found) == 1:
            return {"default": next(iter(found.values()))}
        file = next(iter(found.values()))[0]
        from service.text.chat_template import VARIANTS

        if found.keys().isdisjoint(VARIANTS):
            raise MalformedCheckpoint(uri, file, f"no template is the 'default': {[*found]}")
        # As in transformers, other chats are refused.
        found["default"] = (
            file,
            "{{ raise_exception('the model has templates only for chats with tools or documents') }}",
        )
    return found


def _named_templates(stated: Any, uri: str, file: str) -> dict[str, str]:
    """Return the templates of a file, which has one or a list of named ones."""
    if isinstance(stated, list):
        stated = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
    named = stated if isinstance(stated, dict) else {"default": stated}
    if not named or not all(isinstance(text, str) for item in named.items() for text in item):
        raise MalformedCheckpoint(uri, file, "chat_template is neither a string nor a list of named templates")
    return named


def _missing_tokenizer_message(folder: Path) -> str:
    found = next((name for name in OTHER_FORMATS if (folder / name).is_file()), None)
    if found is None:
        return "there is no tokenizer.json. Put it beside the weights or set TOKENIZER_URI to a place that has one."
    return (
        f"there is {found}, {OTHER_FORMATS[found]}, but no tokenizer.json. Convert it once with transformers: "
        "AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH); or set TOKENIZER_URI to a place that has one."
    )


def special_tokens_of(folder: Path, uri: str, config: Mapping[str, Any] = MappingProxyType({})) -> SpecialTokens:
    """Return the tokens that a checkpoint names and adds; raises as `read_special_tokens`."""
    from service.text.own_vocabulary import class_names, own_names

    has_file = (folder / "tokenizer.json").is_file()
    return read_special_tokens(folder, uri, (class_names if has_file else own_names)(folder, uri, config))


def _num_rows(config: Mapping[str, Any]) -> int | None:
    """Return the number of rows of a model's embedding; None if its configuration does not say it."""
    found = config.get("vocab_size", _text_config(config).get("vocab_size"))
    return found if type(found) is int else None


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that is about text, where it has several parts."""
    found = config.get("text_config")
    return found if isinstance(found, Mapping) else {}


def _eos_ids(uri: str, generation: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[int]:
    """Return the end tokens of the author's generation, which is the model's configuration where no file has it.

    Source: transformers' GenerationConfig.from_model_config
    """
    places = (
        ("generation_config.json", generation),
        (CONFIG_JSON, config),
        (CONFIG_JSON, _text_config(config)),
    )
    file, stated = next(
        ((file, found) for file, values in places if (found := values.get("eos_token_id")) is not None),
        ("", None),
    )
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise MalformedCheckpoint(uri, file, f"eos_token_id is {stated!r}, which is not a token id")
    return frozenset(ids)


def _generation_defaults(uri: str, config: Mapping[str, Any]) -> GenerationDefaults:
    for name, neutral in UNSUPPORTED_DEFAULTS.items():
        if config.get(name) not in neutral:
            logger.warning("generation_config.json asks for %s = %s, which is not applied", name, config[name])
    numbers = {name: _number_in_range(uri, config, name, *bounds) for name, bounds in RANGES.items()}
    top_k = config.get("top_k")
    if top_k is not None and not (type(top_k) is int and -1 <= top_k <= MAX_TOP_K):
        raise _out_of_range(uri, "top_k", top_k)
    if config.get("do_sample") is False:
        # Greedy decoding: the other options only change what is sampled.
        return GenerationDefaults(temperature=0.0, top_p=1.0, repetition_penalty=numbers["repetition_penalty"])
    return GenerationDefaults(**numbers, top_k=top_k, max_tokens=None)


def _number_in_range(uri: str, config: Mapping[str, Any], name: str, lowest: float, highest: float) -> float | None:
    value = config.get(name)
    if value is None:
        return None
    if not (type(value) in (int, float) and lowest <= value <= highest):
        raise _out_of_range(uri, name, value)
    return float(value)


def _out_of_range(uri: str, name: str, value: Any) -> MalformedCheckpoint:
    return MalformedCheckpoint(uri, "generation_config.json", f"{name} is {value!r}, which is out of range")
