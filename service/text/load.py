"""Read a tokenizer, its chat template and the author's sampling defaults from the files beside a checkpoint's weights.

`tokenizer.json` alone decides which ids come out, its post-processor included, as in transformers 5 (so `add_bos_token`
of an older tokenizer_config.json changes nothing). The other files add the names of special tokens, the tokens that end
a text, the chat template, and how the model's author wants it sampled.
Source: https://huggingface.co/docs/transformers/main_classes/tokenizer, .../main_classes/text_generation,
.../chat_templating_writing
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from service.errors import MalformedCheckpoint, MissingFile
from service.text.byte_level import merged_tokenizer
from service.text.generation_defaults import MAX_TOP_K, RANGES, GenerationDefaults
from service.text.json_file import read_json
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from service.text.chat_template import ChatTemplate

logger = logging.getLogger(__name__)

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
# Options of generation_config.json that the sampler lacks, with the values at which they have no effect.
UNSUPPORTED_DEFAULTS: dict[str, tuple[Any, ...]] = {"num_beams": (None, 1), "typical_p": (None, 1)}


def parse_tokenizer(content: bytes) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of a tokenizer.json; the library holds the GIL meanwhile."""
    return tokenizers.Tokenizer.from_buffer(content)


def load_tokenizer(
    folder: Path, uri: str | None = None, parse: Callable[[bytes], tokenizers.Tokenizer] = parse_tokenizer
) -> Tokenizer:
    """Read a tokenizer from the folder of a checkpoint.

    Args:
        folder: where the files lie.
        uri: where they came from, for error messages.
        parse: returns the tokenizer of a tokenizer.json; it may be one that other models use, too.

    Raises:
        MissingFile: there is neither a tokenizer.json nor GPT-2's pair of files.
        MalformedCheckpoint: a file does not hold what its name says.
    """
    uri = uri or str(folder)
    path = folder / "tokenizer.json"
    if path.is_file():
        content = path.read_bytes()
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        content = merged_tokenizer(folder, uri)
    else:
        raise MissingFile(uri, _missing_tokenizer_message(folder))
    try:
        backend = parse(content)
    except Exception as error:  # the library raises bare Exception
        raise MalformedCheckpoint(uri, path.name, f"is not a tokenizer: {error}") from error
    special_tokens = special_tokens_of(folder, uri)
    generation = read_json(folder, "generation_config.json", uri)
    model = read_json(folder, "config.json", uri)
    stated = generation.get("eos_token_id", model.get("eos_token_id"))
    named = backend.token_to_id(special_tokens.get("eos_token", ""))
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        eos_ids=_eos_ids(uri, stated) | ({named} if named is not None else set()),
        defaults=_generation_defaults(uri, generation),
    )


def load_chat_template(
    folder: Path,
    special_tokens: Mapping[str, str],
    uri: str | None = None,
    *,
    is_trusted: bool,
    tool_call_parser: str | None = None,
) -> "ChatTemplate | None":
    """Read the chat template of a checkpoint; None if it has none, as base models do not.

    Its process compiles it while the caller goes on, so `wait` for it.

    Args:
        folder: where the files are.
        special_tokens: by transformers' names.
        uri: where the files came from, for error messages.
        is_trusted: whether the template is part of this package, so that it needs no process of its own.
        tool_call_parser: the name of the format of tool calls; None to find it from the template.

    Raises:
        MalformedCheckpoint: the template does not compile, or is not text.
    """
    uri = uri or str(folder)
    found = _template_source(folder, uri)
    if found is None:
        return None
    from service.text.chat_template import ChatTemplate  # which a base model starts without

    file, source = found
    return ChatTemplate(
        source, special_tokens, uri=uri, file=file, tool_call_parser=tool_call_parser, is_isolated=not is_trusted
    )


def read_preprocessor(folder: Path, uri: str) -> Mapping[str, Any]:
    """Return what a checkpoint says of how images or sound are prepared; empty if it says nothing.

    Raises:
        MalformedCheckpoint: a file is not a JSON object.
    """
    # transformers writes one file for all parts of a processor since version 5.
    nested = read_json(folder, "processor_config.json", uri).get("image_processor")
    return nested if isinstance(nested, dict) else read_json(folder, "preprocessor_config.json", uri)


def _template_source(folder: Path, uri: str) -> tuple[str, str] | None:
    """Return the name of the file that has a template, and the template; None if no file has one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MalformedCheckpoint(uri, path.name, "is not UTF-8 text") from error
    for file in ("chat_template.json", "tokenizer_config.json"):
        stated = read_json(folder, file, uri).get("chat_template")
        if stated is not None:
            return file, _default_template(stated, uri, file)
    return None


def _default_template(stated: Any, uri: str, file: str) -> str:
    """Return the template itself, or the one for plain chats if the file has a list of named templates.

    Source: https://huggingface.co/docs/transformers/chat_templating_multiple_templates ("default")
    """
    if isinstance(stated, list):
        named = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = named.get("default", next(iter(named.values()), None) if len(named) == 1 else None)
    if not isinstance(stated, str):
        raise MalformedCheckpoint(uri, file, "chat_template is neither a string nor a list with a 'default' template")
    return stated


def _missing_tokenizer_message(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            "there is a SentencePiece tokenizer.model but no tokenizer.json. Convert it once with transformers: "
            "AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH); or set TOKENIZER_URI to a place that has one."
        )
    return "there is no tokenizer.json. Put it beside the weights or set TOKENIZER_URI to a place that has one."


def special_tokens_of(folder: Path, uri: str) -> dict[str, str]:
    """Return the special tokens that a checkpoint names, by transformers' names.

    Raises:
        MalformedCheckpoint: a file is not a JSON object.
    """
    found: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):  # the later file wins
        for name, value in read_json(folder, file, uri).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name in SPECIAL_TOKEN_NAMES and isinstance(text, str):
                found[name] = text
    return found


def _eos_ids(uri: str, stated: Any) -> frozenset[int]:
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise MalformedCheckpoint(uri, "generation_config.json", f"eos_token_id is {stated!r}, which is not a token id")
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
