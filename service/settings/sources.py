"""Loading of the settings from flags, environment, `.env` and a YAML file.

A setting is a `serve` flag (`--max-model-len`), an environment variable (its name in capitals, also behind
`LEVSERVE_`), a line of `.env`, or a key of the YAML file given with `--config`; the first source in this order wins.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from service.errors import SettingsError
from service.settings import Settings
from service.settings.hub_names import with_scheme

# A variable this similar to a setting is treated as misspelled: MODEL_URL, MAX_MODEL_LENGTH, API_KEYS.
MISSPELLING_RATIO = 0.85
OTHERS_PREFIX = "OTEL_"  # OpenTelemetry's own variables, some of which resemble ours
PREFIX = "LEVSERVE_"
# What Kubernetes sets for a Service named `levserve`: LEVSERVE_PORT=tcp://10.0.0.1:8080.
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
# Cloud Run sets these for services and for jobs.
PLATFORM_VARIABLES = ("K_SERVICE", "CLOUD_RUN_JOB")
ADDRESSES = ("model_uri", "tokenizer_uri", "adapter_uri", "draft_model_uri")


def load_settings(
    flags: Mapping[str, Any],
    config_path: Path | None = None,
    *,
    typed: Mapping[str, str] = {},
    note: Callable[[str], object] = lambda text: None,
) -> Settings:
    """Read the settings from flags, environment, `.env` and a YAML file.

    Args:
        flags: settings from the command line, by field name.
        config_path: the YAML file given with `--config`.
        typed: what was typed for a setting, by field name, if not the flag of its name.
        note: called with each line that a user should read though nothing is wrong.

    Raises:
        SettingsError: a setting is unknown, malformed or contradicts another; its message names the variable.
    """
    if config_path is not None and not config_path.is_file():
        raise SettingsError("--config", f"there is no file {config_path}.")
    _refuse_misspelled_variables()
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    given = {name: (value, typed.get(name, f"--{name.replace('_', '-')}")) for name, value in flags.items()}
    for source in (_from_yaml(config_path), _from_dotenv(Path(".env"), note), _from_environment(), given):
        for name, (value, origin) in source.items():
            values[name], sources[name] = value, origin
    for name in ADDRESSES:
        if isinstance(text := values.get(name), str) and (address := with_scheme(text)) != text:
            values[name] = address
            note(f"{text} is no folder here, so it is {address}, of the Hugging Face Hub.")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise _with_sources(_settings_error(error, sources), sources) from error
    except SettingsError as error:
        raise _with_sources(error, sources) from error
    settings._sources = sources
    return settings


def wants_json(log_format: str | None) -> bool:
    """Return whether errors before the log is set up are to be JSON: where that is asked, and on Cloud Run."""
    stated = log_format or os.environ.get(f"{PREFIX}LOG_FORMAT") or os.environ.get("LOG_FORMAT") or "auto"
    if stated.lower() != "auto":
        return stated.lower() == "json"
    return any(os.environ.get(name) for name in PLATFORM_VARIABLES)


def export_hub_token(settings: Settings) -> None:
    """Export HF_TOKEN from any source to the environment, where huggingface_hub reads it."""
    if settings.hf_token is not None:
        os.environ["HF_TOKEN"] = settings.hf_token.get_secret_value()


def _from_environment() -> dict[str, tuple[str, str]]:
    # Any case is accepted. Uppercase sorts before lowercase, so in reverse order it comes last and wins.
    given = sorted(os.environ.items(), reverse=True)
    plain = {name.lower(): (value, f"{name} in the environment") for name, value in given if value}
    prefixed = {
        name.removeprefix(PREFIX.lower()): (value, origin)
        for name, (value, origin) in plain.items()
        if name.startswith(PREFIX.lower()) and not SERVICE_LINK.match(value)
    }
    return {name: value for name, value in (plain | prefixed).items() if name in Settings.model_fields}


def _from_dotenv(path: Path, note: Callable[[str], object]) -> dict[str, tuple[str, str]]:
    """Read a `.env` file; what belongs to other programs is named and left."""
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # imports before the port opens are kept to a minimum

    found, foreign = {}, []
    lines = {name: value for name, value in dotenv_values(path).items() if value}
    for variable, value in sorted(lines.items(), key=lambda line: line[0].upper().startswith(PREFIX)):
        name = variable.lower().removeprefix(PREFIX.lower())
        if name in Settings.model_fields:
            found[name] = (value, f"{variable} in .env")
            continue
        _refuse_misspelled(variable)
        foreign.append(variable)
    if foreign:
        note(f".env: not settings of Levserve, and left alone: {', '.join(foreign)}.")
    return found


def _from_yaml(path: Path | None) -> dict[str, tuple[Any, str]]:
    if path is None:
        return {}
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:  # its text quotes the line, which may contain a key
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise SettingsError("--config", f"{path} is not valid YAML{where}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("--config", f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict | None):
        raise SettingsError("--config", f"{path} should contain settings by name, such as `port: 8080`.")
    # `max-model-len` and `MAX_MODEL_LEN` are the setting too.
    named = {str(name).replace("-", "_").lower(): value for name, value in (values or {}).items()}
    return {name: (value, f"{name} in {path}") for name, value in named.items()}


def _refuse_misspelled_variables() -> None:
    for variable in sorted(os.environ.keys()):
        _refuse_misspelled(variable)


def _refuse_misspelled(variable: str) -> None:
    """Refuse a variable that is spelled almost like a setting.

    Raises:
        SettingsError: it is.
    """
    known = {name.upper() for name in Settings.model_fields}
    name = variable.removeprefix(PREFIX)
    if name in known or variable.startswith(OTHERS_PREFIX) or len(name) <= 5:
        return
    if match := difflib.get_close_matches(name, known, n=1, cutoff=MISSPELLING_RATIO):
        raise SettingsError(variable, f"is not a setting of Levserve. Did you mean {match[0]}?")


def _settings_error(error: ValidationError, sources: Mapping[str, str]) -> SettingsError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    variable = name.upper()
    if first["type"] == "extra_forbidden":
        match = difflib.get_close_matches(name, Settings.model_fields, n=1)
        return SettingsError(
            variable, "is not a setting of Levserve." + (f" Did you mean {match[0].upper()}?" if match else "")
        )
    origin = sources.get(name, "")
    given = "" if variable.endswith(("_KEY", "_TOKEN")) else f" (it is {first['input']!r})"
    return SettingsError(origin if origin.startswith("-") else variable, f"{first['msg']}{given}.")


def _with_sources(error: SettingsError, sources: Mapping[str, str]) -> SettingsError:
    """Return an error that also says where the settings that it names come from, unless that is a flag."""
    named = [name.lower() for name in dict.fromkeys(re.findall(r"[A-Z][A-Z0-9_]+", str(error)))]
    origins = {name: sources[name] for name in named if _is_variable(sources.get(name, ""))}
    if not origins:
        return error
    reason = f"{str(error).removeprefix(f'{error.variable}: ')} Set by {' and '.join(origins.values())}."
    # A variable without a prefix may be meant for another program.
    if any(origin.startswith(f"{name.upper()} in the") for name, origin in origins.items()):
        reason += f" A variable with the prefix {PREFIX}, or a flag, goes before it."
    return SettingsError(error.variable, reason)


def _is_variable(source: str) -> bool:
    """Return whether a setting comes from the environment or a file, and not from the command line."""
    return " in " in source
