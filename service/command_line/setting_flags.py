"""A flag for each setting, in groups: its name, its placeholder, its help."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from service.settings import Settings, choices_of

GROUPS: dict[str, tuple[str, ...]] = {
    "model": (
        "model_uri",
        "model_name",
        "model_config_uri",
        "tokenizer_uri",
        "adapter_uri",
        "hf_token",
        "dtype",
        "quantization",
        "chat_template",
        "default_chat_template_kwargs",
        "tool_call_parser",
        "reasoning_parser",
        "default_max_tokens",
        "default_temperature",
    ),
    "many models": (
        "gcs_bucket",
        "gcs_model_prefix",
        "catalogue_uri",
        "models_config",
        "models",
        "catalogue_ttl",
        "max_cached_models",
        "host_cache_bytes",
        "model_load_wait_seconds",
    ),
    "adapters": ("max_loras", "max_lora_rank", "lora_cache_bytes"),
    "limits": (
        "max_model_len",
        "max_concurrent_requests",
        "max_queue_size",
        "max_queued_tokens",
        "queue_timeout",
        "request_timeout",
        "early_requests",
        "max_body_bytes",
        "max_open_body_bytes",
        "max_audio_bytes",
        "max_image_body_bytes",
        "max_image_tokens",
        "allow_remote_images",
        "remote_image_timeout",
        "max_remote_image_bytes",
    ),
    "memory and speed": (
        "max_num_seqs",
        "device_memory_fraction",
        "kv_dtype",
        "tensor_parallel",
        "data_parallel",
        "max_prefill_tokens",
        "max_step_stall_ms",
        "speculation",
        "draft_model_uri",
        "page_size",
        "embedding_cache_bytes",
    ),
    "HTTP": (
        "host",
        "port",
        "api_key",
        "api_key_file",
        "admin_api_key",
        "allowed_hosts",
        "cors_origins",
        "page",
        "strict_fields",
        "ready_when",
        "drain_seconds",
        "watchdog_seconds",
        "local_dev",
        "aip_http_port",
        "aip_health_route",
        "aip_predict_route",
    ),
    "storage": (
        "local_model_cache",
        "max_cached_checkpoints",
        "auto_download_models",
        "model_stream",
        "stream_staging_bytes",
        "pull_timeout",
        "bundle_uri",
        "bundle_signing_key",
        "batch_uri",
        "batch_file_bytes",
        "batch_total_bytes",
        "state_uri",
        "state_ttl",
        "state_total_bytes",
        "storage_emulator_host",
    ),
    "observability": (
        "log_level",
        "log_format",
        "enable_metrics",
        "metrics_port",
        "metrics_compat",
        "otel_exporter_otlp_endpoint",
        "google_cloud_project",
        "k_service",
        "k_revision",
    ),
}
# What most people set, with a help of one line.
MAIN: dict[str, str] = {
    "model_name": "the name that clients send as `model`",
    "host": "the address to listen on",
    "port": "the port to listen on",
    "api_key": "the keys that requests need, separated by commas",
    "max_model_len": "the context in tokens, prompt and completion",
    "max_num_seqs": "sequences that run at the same time",
    "dtype": "the type of weights and activations",
    "quantization": "weights in 8 or 4 bits",
    "device_memory_fraction": "the part of the device's memory to use",
    "local_model_cache": "the folder of downloaded checkpoints",
}
UNITS = {"_bytes": "BYTES", "_seconds": "SECONDS", "_timeout": "SECONDS", "_ttl": "SECONDS", "_ms": "MS"}
FORMS = {"_uri": "ADDRESS", "_config": "FILE", "_file": "FILE", "_cache": "FOLDER"}


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def switches() -> frozenset[str]:
    """Return the flags that may stand without a value."""
    return frozenset(flag_of(name) for name, field in Settings.model_fields.items() if field.annotation is bool)


def add_settings(parser: argparse.ArgumentParser, *, without: Sequence[str] = (), shows_all: bool) -> None:
    """Add a flag for each setting; those that the help leaves out are accepted all the same.

    Args:
        parser: the parser of a command.
        without: settings that the command has in another form.
        shows_all: whether the help shows all settings, in their groups, or only those that most people set.
    """
    main = parser.add_argument_group("settings")
    main.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of settings")
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title) if shows_all else main
        for name in names:
            if name in without:
                continue
            field = Settings.model_fields[name]
            text = _full_help(field) if shows_all else _short_help(name, field)
            placeholder = placeholder_of(name, field)
            group.add_argument(
                flag_of(name),
                metavar=placeholder,
                help=argparse.SUPPRESS if text is None else text.replace("%", "%%").replace("`", ""),
            )


def placeholder_of(name: str, field: FieldInfo) -> str:
    """Return what stands for the value of a setting in its help: its choices, or what it counts."""
    kind = _without_none(field.annotation)
    if choices := choices_of(field.annotation):
        return "|".join(choices)
    if kind is bool:
        return "true|false"
    for ending, word in (UNITS | FORMS).items():
        if name.endswith(ending):
            return word
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _short_help(name: str, field: FieldInfo) -> str | None:
    default = "" if field.default is None or choices_of(field.annotation) else f"; default: {_said(field.default)}"
    return f"{MAIN[name]}{default}" if name in MAIN else None


def _full_help(field: FieldInfo) -> str:
    default = "" if field.default is None or field.default == "" else f" Default: {_said(field.default)}."
    return f"{field.description}{default}"


def _said(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _without_none(annotation: Any) -> Any:
    """Return the type of a setting that may be unset."""
    if type(None) not in get_args(annotation):
        return annotation
    [kind] = [part for part in get_args(annotation) if part is not type(None)]
    return kind


def wants_all_help(arguments: Sequence[str]) -> bool:
    """Return whether the command line asks for the help of all settings."""
    return "--help-all" in arguments


class ShowAllHelp(argparse.Action):
    """Prints the help, which then shows all settings."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show every setting, by groups, and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and exit."""
        parser.print_help(sys.stdout)
        parser.exit()
