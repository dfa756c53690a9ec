"""The pages of docs/reference that follow from the code: settings, routes, commands, series, errors, MODELS_CONFIG."""

import argparse
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAliasType, get_args, get_origin

from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from service import errors
from service.api.routes import all_routers
from service.catalogue.described import DescribedDefaults, DescribedModel
from service.cli import build_parser
from service.command_line import setting_flags
from service.errors import EngineError, RequestError, StartError
from service.observability.metrics import Metrics
from service.observability.model_metrics import ModelMetrics
from service.server.admin import ROUTES
from service.server.pages import PAGES
from service.settings import Settings

# The interfaces of the routes, by how their paths begin; the first that fits holds.
INTERFACES: dict[str, tuple[str, ...]] = {
    "OpenAI's": (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/decisions",
        "/v1/responses",
        "/v1/models",
        "/v1/embeddings",
        "/v1/audio",
        "/v1/files",
        "/v1/batches",
    ),
    "Anthropic's": ("/v1/messages",),
    "Rankings and scores (Jina's, Cohere's, vLLM's)": (
        "/v1/rerank",
        "/v2/rerank",
        "/v1/score",
        "/rerank",
        "/v1/reranking",
        "/score",
    ),
    "vLLM's": ("/pooling", "/tokenize", "/detokenize", "/tokenizer_info", "/version", "/kv_event_sources"),
    "llama.cpp's": ("/embedding",),
    "Ollama's": ("/api/",),
    "SageMaker's": ("/invocations", "/ping"),
    "SGLang's": ("/model_info", "/server_info", "/v1/loads", "/get_", "/loads"),
    "Levserve's own": ("/extract_text", "/openapi.json", "/docs", "/", "/vectors", "/hear"),
    "Health and metrics": ("/health", "/metrics"),
    "The operator's; they need ADMIN_API_KEY": ("/admin", "/stats", "/v1/load_lora", "/v1/unload_lora"),
}
# The answers that pages and the operator's routes give, which no router holds.
OTHER_ROUTES: dict[str, str] = {
    "/": "A page to chat with the model; it shows the start while the model loads.",
    "/vectors": "A page to compare and rank texts.",
    "/hear": "A page to transcribe a file or the microphone.",
    "/docs": "This interface as a page.",
    "/admin/stats": "Return the phases of the start and the state of the service.",
    "/stats": "The same.",
    "/admin/models": "List the models with their memory, last use and starts.",
    "/admin/load/{model}": "Load a model in the background (202).",
    "/admin/unload/{model}": "Unload a model once its open requests have ended (200).",
    "/v1/load_lora_adapter": "Serve an adapter from the catalogue's folder under a name.",
    "/v1/unload_lora_adapter": "End that.",
}
# What a key of MODELS_CONFIG holds.
WORDS = {str: "text", int: "integer", float: "number", bool: "`true` or `false`", list: "a list", dict: "a mapping"}
COMMANDS = ("serve", "prewarm", "batch", "compare", "check", "import", "convert", "smoke", "completion")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar in a cell is escaped, and a line break becomes a space."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', '\\|').replace('\n', ' ') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def settings_reference() -> str:
    """Return a table for each group of settings, in the order of `levserve serve --help-all`."""
    assert sorted(chain(*setting_flags.GROUPS.values())) == sorted(Settings.model_fields)
    return "\n\n".join(
        f"## {title[0].upper()}{title[1:]}\n\n{_settings(names)}" for title, names in setting_flags.GROUPS.items()
    )


def _settings(names: Sequence[str]) -> str:
    rows = []
    for name in names:
        field = Settings.model_fields[name]
        default = "" if field.default in (None, PydanticUndefined) else f"`{_written(field.default)}`"
        flag = f"`{setting_flags.flag_of(name)} {setting_flags.placeholder_of(name, field)}`"
        if len(flag) > 60:  # dozens of choices
            flag = f"`{setting_flags.flag_of(name)} NAME`"
        rows.append((f"`{name.upper()}`", flag, default, field.description or ""))
    return table(("variable", "flag", "default", "meaning"), rows)


def _written(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def routes_reference() -> str:
    """Return a table of routes for each interface."""
    found: dict[str, list[tuple[str, str, str]]] = {name: [] for name in INTERFACES}
    for path, methods, meaning in _routes():
        found[_interface(path)].append((f"`{path}`", ", ".join(methods), meaning))
    sections = [
        f"## {name}\n\n{table(('path', 'method', 'what it does'), rows)}" for name, rows in found.items() if rows
    ]
    return "\n\n".join(sections)


def _routes() -> Iterator[tuple[str, list[str], str]]:
    routes = [route for router in all_routers(has_batches=True) for route in router.routes]
    for route in routes:
        if isinstance(route, APIRoute):
            meaning = (inspect.getdoc(route.endpoint) or "").split("\n")[0]
            yield route.path.replace(":path", ""), sorted(route.methods - {"HEAD"}), meaning
    for path, meaning in OTHER_ROUTES.items():
        yield path, [ROUTES.get(path, "GET")], meaning
    if missing := (ROUTES.keys() | PAGES) - OTHER_ROUTES.keys():
        raise ValueError(f"no meaning for {sorted(missing)}")


def _interface(path: str) -> str:
    for name, beginnings in INTERFACES.items():
        if any(path == begin or (begin != "/" and path.startswith(begin)) for begin in beginnings):
            return name
    raise ValueError(f"{path} belongs to no interface")


def commands_reference() -> str:
    """Return the help of each command, which for settings is the short one."""
    parser = build_parser()
    assert parser.commands is not None
    assert sorted(COMMANDS) == sorted(parser.commands)
    return "\n\n".join(f"## levserve {name}\n\n{_command(parser.commands[name])}" for name in COMMANDS)


def _command(parser: argparse.ArgumentParser) -> str:
    own = [
        action
        for action in parser._actions
        if action.help is not argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction)
        and action.dest not in Settings.model_fields
        and action.dest not in ("help_all", "config")
    ]
    rows = [
        (
            f"`{', '.join(action.option_strings) or action.metavar or action.dest}"
            f"{f' {action.metavar}' if action.option_strings and isinstance(action.metavar, str) else ''}`",
            (action.help or "").replace("%%", "%"),
        )
        for action in own
    ]
    usage = parser.usage or " ".join(parser.format_usage().split()).removeprefix("usage: ")
    takes_settings = any(action.dest in Settings.model_fields for action in parser._actions)
    parts = [f"{parser.description or ''}".strip(), f"```text\n{usage}\n```"]
    parts += [table(("argument", "meaning"), rows)] if rows else []
    parts += ["Takes every [setting](settings.md) as a flag."] if takes_settings else []
    return "\n\n".join(part for part in parts if part)


def metrics_reference() -> str:
    """Return the series of the process and of each model."""
    own = {family.name: family for family in ModelMetrics().registry.collect()}
    shared = [family for family in Metrics().registry.collect() if family.name not in own]
    return "\n\n".join(
        [
            f"## Of a model\n\nEach has the label `model_name`.\n\n{_series(own.values())}",
            f"## Of the process\n\n{_series(shared)}",
        ]
    )


def _series(families: Iterable[Any]) -> str:
    endings = {"counter": "_total", "histogram": "_bucket, …_sum, …_count"}
    return table(
        ("series", "kind", "meaning"),
        [
            (f"`{family.name}{endings.get(family.type, '')}`", family.type, family.documentation)
            for family in sorted(families, key=lambda family: family.name)
        ],
    )


def errors_reference() -> str:
    """Return the errors of requests by code, then those that end a start by name."""
    answers: dict[tuple[str, int, str], list[str]] = {}
    for kind in _subclasses(RequestError, EngineError):
        about = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        answers.setdefault((kind.code or "", kind.status, kind.type), []).append(about)
    rows = [
        (f"`{code}`" if code else "null", str(status), f"`{type_}`", " ".join(dict.fromkeys(meanings)))
        for (code, status, type_), meanings in sorted(answers.items())
    ]
    starts = [(f"`{kind.__name__}`", (inspect.getdoc(kind) or "").split("\n\n")[0]) for kind in _subclasses(StartError)]
    return "\n\n".join(
        [
            f"## By code\n\n{table(('code', 'status', 'type', 'meaning'), rows)}",
            "## Errors that end a start\n\nEach is one line with cause and remedy on stderr, and exit code 1.\n\n"
            + table(("error", "meaning"), starts),
        ]
    )


def _subclasses(*bases: type) -> list[type[Any]]:
    kinds = [getattr(errors, name) for name in sorted(errors.__all__)]
    return [kind for kind in kinds if issubclass(kind, bases)]


def models_config_reference() -> str:
    """Return the keys of MODELS_CONFIG."""
    return (
        f"{_keys(DescribedModel)}\n\n## Defaults of requests\n\n"
        f"`defaults` holds for requests that leave an option out.\n\n{_keys(DescribedDefaults)}"
    )


def _keys(model: type[BaseModel]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        bounds = ", ".join(
            f"{sign} {getattr(bound, attribute):g}"
            for bound in field.metadata
            for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
            if getattr(bound, attribute, None) is not None
        )
        kind = _kind(field.annotation, f"as [{name.upper()}](settings.md)" if name in Settings.model_fields else None)
        rows.append((f"`{name}`", f"{kind}{f', {bounds}' if bounds else ''}", field.description or ""))
    return table(("key", "value", "meaning"), rows)


def _kind(annotation: Any, of_setting: str | None) -> str:
    """Return what a key holds, in words; a choice of words is that of the setting of its name."""
    if kinds := [
        part for part in get_args(annotation) if type(None) in get_args(annotation) and part is not type(None)
    ]:
        [annotation] = kinds
    if isinstance(annotation, TypeAliasType):
        return of_setting or " or ".join(f"`{choice}`" for choice in get_args(annotation.__value__))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping"
    return WORDS[get_origin(annotation) or annotation]
