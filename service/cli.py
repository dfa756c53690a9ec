"""The command line `levserve COMMAND`. Every setting is a flag; an error is one line and an exit code."""

import argparse
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NoReturn, override

from service.device.chips import TARGETS
from service.errors import ServiceError, SettingsError
from service.observability.background import FLUSH_S, write_out_log
from service.observability.logs import Origin, configure_logging, end_logging
from service.settings import Settings
from service.settings.sources import export_hub_token, load_settings
from service.smoke.command import add_parser as add_smoke
from service.smoke.command import run as run_smoke

logger = logging.getLogger(__name__)

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 after a clean stop, 1 on an error, 2 on a wrong flag."""
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse_flag(parser, parsed.command, unknown[0])
    if parsed.command == "smoke":
        sys.exit(run_smoke(parsed))
    flags = vars(parsed)
    # What `compare` prints is for programs too.
    log_stream = sys.stderr if parsed.command == "compare" else sys.stdout
    configure_logging("INFO", flags.get("log_format") or "auto", log_stream)
    code = 0
    level = "INFO"
    try:
        settings = load_settings(
            {name: value for name, value in flags.items() if name in Settings.model_fields}, flags.get("config")
        )
        level = settings.log_level
        export_hub_token(settings)
        origin = Origin(settings.google_cloud_project, settings.k_service, settings.k_revision)
        configure_logging(settings.log_level, settings.log_format, log_stream, origin=origin)
        code = _run(flags, settings)
    except Exception as error:
        _exit(1, partial(_log_error, error, with_trace=level == "DEBUG"))
    _exit(code)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser: the commands, each with a flag for every setting."""
    parser = _Parser(
        prog="levserve", description="An OpenAI-compatible inference service for fine-tuned models, on JAX."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a checkpoint; without MODEL_URI, the demo model",
        description="Serve a checkpoint. Each flag is also an environment variable, its name in capitals.",
        argument_default=argparse.SUPPRESS,
    )
    serve.add_argument(
        "--profile-start",
        type=Path,
        metavar="FILE.png",
        help="draw the start's timeline once it is ready (.png, .svg or .pdf; needs matplotlib)",
    )
    serve.add_settings()
    prewarm = commands.add_parser(
        "prewarm",
        help="make a checkpoint's bundle ahead of traffic",
        description="Compile a checkpoint's executables on this accelerator and keep them as a bundle, so that a start "
        "compiles nothing. Each flag is also an environment variable, its name in capitals.",
        argument_default=argparse.SUPPRESS,
    )
    prewarm.add_argument("model_uri", nargs="?", metavar="MODEL_URI", help="the checkpoint, as for serve")
    prewarm.add_argument(
        "--check", action="store_true", help="compile nothing; exit with 0 if a start would find its bundle, else 1"
    )
    prewarm.add_argument(
        "--all",
        action="store_true",
        help="make the bundles of all models of a bucket, folder or MODELS_CONFIG",
    )
    prewarm.add_argument(
        "--target",
        choices=list(TARGETS),
        help="compile for this machine on another one, with the extra `tpu`, `cuda12` or `cuda13` that it serves with",
    )
    prewarm.add_settings(without="model_uri")
    batch = commands.add_parser(
        "batch",
        help="answer a batch file (OpenAI's format) without a port",
        description="Answer every line of a batch file and write the answers to another. A run that was killed resumes "
        "where it stopped. Each flag is also an environment variable, its name in capitals.",
        argument_default=argparse.SUPPRESS,
    )
    batch.add_argument("source", type=Path, metavar="IN.jsonl", help="the batch file")
    batch.add_argument("target", type=Path, metavar="OUT.jsonl", help="the file of answers, once all are complete")
    batch.add_settings()
    _add_compare(commands)
    _add_copies(commands)
    add_smoke(commands)
    return parser


def _add_compare(commands: "argparse._SubParsersAction[_Parser]") -> None:
    compare = commands.add_parser(
        "compare",
        help="measure how much two ways to serve a checkpoint differ over a text",
        description="Print the perplexity of a text under two ways to serve a checkpoint, the KL divergence of "
        "their next tokens, how often the most probable token is the same, and the largest difference of a logit. "
        "Each flag is also an environment variable, its name in capitals, and holds for both ways.",
        argument_default=argparse.SUPPRESS,
    )
    for name in ("first", "second"):
        example = "settings of this way alone, such as 'QUANTIZATION=int8 DTYPE=bfloat16'; '' for none"
        compare.add_argument(name, metavar=name.upper(), help=example)
    compare.add_argument("--text", type=Path, required=True, metavar="FILE", help="the text, in UTF-8")
    compare.add_settings()


def _add_copies(commands: "argparse._SubParsersAction[_Parser]") -> None:
    """Add the commands that copy a checkpoint from one place to another."""
    imports = commands.add_parser(
        "import",
        help="copy a checkpoint from the Hugging Face Hub into a bucket",
        description="Copy a checkpoint from the Hugging Face Hub into a bucket, through memory and not through a disk. "
        "Every file is verified; an import that was interrupted goes on with the files that are missing.",
        argument_default=argparse.SUPPRESS,
    )
    imports.add_argument("source", metavar="hf://ORG/NAME[@REVISION]", help="the repository; HF_TOKEN if it is gated")
    imports.add_argument("target", metavar="gs://BUCKET/FOLDER", help="an empty folder, or one of an earlier import")
    convert = commands.add_parser(
        "convert",
        help="write a checkpoint of pickled weights (pytorch_model.bin) as safetensors, or merge an adapter into one",
        description="Write a checkpoint of pickled weights as safetensors, with its configuration and tokenizer, into "
        "a folder or a bucket. Nothing in a pickle is executed. With an adapter, write any checkpoint with the adapter "
        "merged into it.",
        argument_default=argparse.SUPPRESS,
    )
    convert.add_argument("source", metavar="SOURCE", help="gs://bucket/folder, hf://org/name[@revision] or a folder")
    convert.add_argument("target", metavar="TARGET", help="gs://bucket/folder or a folder: a new one")
    convert.add_argument("--adapter", metavar="ADAPTER", help="an adapter (LoRA) in the format of PEFT, to merge")


def _refuse_flag(parser: argparse.ArgumentParser, command: str, flag: str) -> NoReturn:
    """Exit with the setting that an unknown flag most resembles."""
    settings = [f"--{name.replace('_', '-')}" for name in Settings.model_fields]
    close = get_close_matches(flag.partition("=")[0], settings, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    parser.exit(2, f"levserve {command}: {flag} is unknown{hint}\n`levserve {command} --help` shows what there is.\n")


class _Parser(argparse.ArgumentParser):
    """A parser that has flags for settings."""

    @override
    def error(self, message: str) -> NoReturn:
        """Exit with the error and the command that explains it; the usage alone would fill a screen with settings."""
        self.exit(2, f"{self.prog}: {message}\n`{self.prog} --help` shows what there is.\n")

    def add_settings(self, without: str = "") -> None:
        """Add a flag for every setting but one."""
        self.add_argument("--config", type=Path, metavar="FILE", help="a YAML file of settings")
        for name, field in Settings.model_fields.items():
            if name != without:
                meaning = (field.description or "").replace("%", "%%").replace("`", "")
                self.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=meaning)


def _run(flags: dict[str, object], settings: Settings) -> int:
    if flags["command"] == "prewarm":
        from service.start.prewarm import check, prewarm

        target = flags.get("target")
        if bool(flags.get("all")) != settings.has_catalogue and not (settings.has_catalogue and flags.get("check")):
            reason = "and the settings name one model." if flags.get("all") else "which the settings name."
            raise SettingsError("--all", f"prewarms a catalogue (GCS_BUCKET, CATALOGUE_URI, MODELS_CONFIG), {reason}")
        run = check if flags.get("check") else prewarm
        return run(settings, str(target) if target else None)
    if flags["command"] == "batch":
        from service.offline.command import run_file

        return run_file(settings, Path(str(flags["source"])), Path(str(flags["target"])))
    if flags["command"] == "compare":
        from service.offline.compare import compare

        given = {name: value for name, value in flags.items() if name in Settings.model_fields}
        ways, config = (str(flags["first"]), str(flags["second"])), flags.get("config")
        return compare(ways, Path(str(flags["text"])), given, config if isinstance(config, Path) else None)
    if flags["command"] == "import":
        from service.offline.import_checkpoint import import_checkpoint

        return import_checkpoint(
            str(flags["source"]), str(flags["target"]), emulator_host=settings.storage_emulator_host
        )
    if flags["command"] == "convert":
        from service.offline.convert import convert

        adapter = flags.get("adapter")
        return convert(str(flags["source"]), str(flags["target"]), settings, str(adapter) if adapter else None)
    from service.server.app import serve

    picture = flags.get("profile_start")
    if isinstance(picture, Path):
        _check_picture(picture)
    serve(settings, picture if isinstance(picture, Path) else None)
    return 0


def _check_picture(path: Path) -> None:
    """Refuse before the start a picture that could not be drawn after it.

    Raises:
        SettingsError: the suffix, the folder or matplotlib is missing.
    """
    from importlib.util import find_spec

    if path.suffix not in PICTURE_SUFFIXES:
        raise SettingsError("--profile-start", f"{path} ends with none of {', '.join(PICTURE_SUFFIXES)}.")
    if not path.parent.is_dir():
        raise SettingsError("--profile-start", f"there is no folder {path.parent}.")
    if find_spec("matplotlib") is None:
        raise SettingsError("--profile-start", "matplotlib draws the picture. Install it: pip install matplotlib.")


def _log_error(error: Exception, *, with_trace: bool) -> None:
    if isinstance(error, ServiceError):
        logger.error("%s", error, exc_info=error if with_trace else None)
    else:
        logger.critical("an error that should not happen; please report it", exc_info=error)


def _exit(code: int, log_cause: Callable[[], None] = lambda: None) -> NoReturn:
    """Log the cause and end the process, even while a thread is deep in a compilation that cannot be interrupted.

    Args:
        code: the exit code.
        log_cause: writes the last lines of the log.
    """
    # Running threads fail as the process ends under them, and their log lines would hide the cause.
    end_logging(log_cause)
    if threading.active_count() == 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    logging.shutdown()
    if write_out_log(FLUSH_S):  # else the thread that writes holds stdout, which nobody reads
        sys.stdout.flush()
    os._exit(code)
