"""Loading of the settings from flags, environment, `.env` and a YAML file.

A setting is a `serve` flag (`--max-model-len`), an environment variable (its name in capitals), a line of `.env`, or a
key of the YAML file given with `--config`; the first source in this order wins.
"""

import difflib
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from service.errors import SettingsError
from service.settings import Settings

# A variable this similar to a setting is treated as misspelled: MODEL_URL, MAX_MODEL_LENGTH, API_KEYS.
MISSPELLING_RATIO = 0.85
OTHERS_PREFIX = "OTEL_"  # OpenTelemetry's own variables, some of which resemble ours


def load_settings(flags: dict[str, Any], config_path: Path | None = None) -> Settings:
    """Read the settings from flags, environment, `.env` and a YAML file.

    Args:
        flags: settings from the command line, by field name.
        config_path: the YAML file given with `--config`.

    Raises:
        SettingsError: a setting is unknown, malformed or contradicts another; its message names the variable.
    """
    if config_path is not None and not config_path.is_file():
        raise SettingsError("--config", f"there is no file {config_path}.")
    _refuse_misspelled_variables()
    # In a union of dicts, the right operand wins.
    values = _from_yaml(config_path) | _from_dotenv(Path(".env")) | _from_environment() | flags
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _settings_error(error) from error


def export_hub_token(settings: Settings) -> None:
    """Export HF_TOKEN from any source to the environment, where huggingface_hub reads it."""
    if settings.hf_token is not None:
        os.environ["HF_TOKEN"] = settings.hf_token.get_secret_value()


def _from_environment() -> dict[str, str]:
    # Any case is accepted. Uppercase sorts before lowercase, so in reverse order it comes last and wins.
    named = ((name.lower(), value) for name, value in sorted(os.environ.items(), reverse=True))
    return {name: value for name, value in named if name in Settings.model_fields and value}


def _from_dotenv(path: Path) -> dict[str, str]:
    """Read a `.env` file, which may contain only settings."""
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # imports before the port opens are kept to a minimum

    return {name.lower(): value for name, value in dotenv_values(path).items() if value}


def _from_yaml(path: Path | None) -> dict[str, Any]:
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
    return {str(name): value for name, value in (values or {}).items()}


def _refuse_misspelled_variables() -> None:
    known = {name.upper() for name in Settings.model_fields}
    for variable in sorted(os.environ.keys() - known):
        if variable.startswith(OTHERS_PREFIX):
            continue
        match = difflib.get_close_matches(variable, known, n=1, cutoff=MISSPELLING_RATIO)
        if match and len(variable) > 5:
            raise SettingsError(variable, f"is not a setting of Levserve. Did you mean {match[0]}?")


def _settings_error(error: ValidationError) -> SettingsError:
    first = error.errors(include_url=False, include_context=False)[0]
    variable = str(first["loc"][0]).upper() if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        match = difflib.get_close_matches(variable.lower(), Settings.model_fields, n=1)
        return SettingsError(
            variable, "is not a setting of Levserve." + (f" Did you mean {match[0].upper()}?" if match else "")
        )
    given = "" if variable.endswith(("_KEY", "_TOKEN")) else f" (it is {first['input']!r})"
    return SettingsError(variable, f"{first['msg']}{given}.")
