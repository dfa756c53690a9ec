"""The command line: `levserve serve`, `levserve smoke`. Every setting is a flag; errors are one line, an exit code."""

import argparse
import atexit
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from service.errors import ServiceError
from service.observability.logs import configure_logging
from service.settings import Settings, load_settings
from service.smoke.command import add_parser as add_smoke
from service.smoke.command import run as run_smoke

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 after a clean stop, 1 on an error, 2 on a wrong flag."""
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    if parsed.command == "smoke":
        sys.exit(run_smoke(parsed))
    flags = vars(parsed)
    flags.pop("command")
    configure_logging("INFO", flags.get("log_format") or "auto")
    code = 0
    level = "INFO"
    try:
        settings = load_settings(
            {name: value for name, value in flags.items() if name != "config"}, flags.get("config")
        )
        level = settings.log_level
        configure_logging(settings.log_level, settings.log_format)
        from service.app import serve

        serve(settings)
    except ServiceError as error:
        logger.error("%s", error, exc_info=level == "DEBUG")
        code = 1
    except Exception:
        logger.critical("an error that should not happen; please report it", exc_info=True)
        code = 1
    _exit(code)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; `serve` has a flag for each setting."""
    parser = argparse.ArgumentParser(
        prog="levserve", description="An OpenAI-compatible inference service for fine-tuned models, on JAX."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a checkpoint; without MODEL_URI, the demo model",
        description="Serve a checkpoint. Each flag is also an environment variable, its name in capitals.",
        argument_default=argparse.SUPPRESS,
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of settings")
    for name, field in Settings.model_fields.items():
        text = " ".join((field.description or "").replace("%", "%%").replace("`", "").split())
        serve.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=text)
    add_smoke(commands)
    return parser


def _exit(code: int) -> NoReturn:
    """End the process, also while a thread is deep in a compilation that nothing can interrupt."""
    if threading.active_count() == 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
