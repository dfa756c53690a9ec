"""The command line `levserve COMMAND`. Every setting is a flag; an error is a line on stderr and an exit code."""

import argparse
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, override

from service.command_line import setting_flags, vllm
from service.command_line.arguments import meant, normalized
from service.command_line.messages import Messages
from service.device.chips import TARGETS
from service.errors import SettingsError
from service.observability.background import FLUSH_S, write_out_log
from service.observability.logs import Origin, configure_logging, end_logging
from service.settings import Settings
from service.settings.shard import read_shard
from service.settings.sources import export_hub_token, load_settings, wants_json
from service.smoke.command import add_parser as add_smoke
from service.smoke.command import run as run_smoke

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")
ALSO_VARIABLES = "Each setting is also an environment variable: PORT or LEVSERVE_PORT is --port."
SHELLS = ("bash", "zsh")
VERSION = ("--version", "-V", "version")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 after a clean stop, 1 on an error, 2 on a wrong flag."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] and words[0] in VERSION:
        from service.command_line.version import version_line

        print(version_line())
        sys.exit(0)
    parser = build_parser(words[0] if words else "", shows_all="--help-all" in words)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        _refuse_word(parser, parsed.command, unknown[0])
    if parsed.command == "completion":
        from service.command_line.completion import completion

        print(completion(parsed.shell, build_parser(shows_all=True).commands or {}), end="")
        sys.exit(0)
    if parsed.command == "smoke":
        sys.exit(run_smoke(parsed))
    flags = vars(parsed)
    # What `check` and `compare` print is for programs too.
    log_stream = sys.stderr if parsed.command in ("check", "compare") else sys.stdout
    configure_logging("INFO", flags.get("log_format") or "auto", log_stream)
    messages = Messages(parsed.command, is_json=wants_json(flags.get("log_format")))
    code = 0
    level = "INFO"
    try:
        settings, flags = read_settings(flags, messages)
        level = settings.log_level
        messages.is_json = wants_json(settings.log_format)
        export_hub_token(settings)
        origin = Origin(settings.google_cloud_project, settings.k_service, settings.k_revision)
        configure_logging(settings.log_level, settings.log_format, log_stream, origin=origin)
        code = _run(flags, settings)
    except Exception as error:
        _exit(1, partial(messages.error, error, with_trace=level == "DEBUG"))
    _exit(code)


def read_settings(flags: dict[str, Any], messages: Messages) -> tuple[Settings, dict[str, Any]]:
    """Return the settings, and the flags in Levserve's own terms.

    Raises:
        SettingsError: a flag or a setting is wrong.
    """
    typed: dict[str, str] = {}
    if (model := flags.get("model")) is not None:
        if flags.setdefault("model_uri", model) != model:
            raise SettingsError(
                "MODEL", f"is {model!r}, but --model-uri is {flags['model_uri']!r}; set one of the two."
            )
        typed["model_uri"] = "MODEL"
    meaning = vllm.translate(flags)
    for text in meaning.notes:
        messages.note(text)
    flags = {name: value for name, value in (flags | meaning.settings).items() if value is not None}
    given = {name: value for name, value in flags.items() if name in Settings.model_fields}
    return load_settings(given, flags.get("config"), typed=typed | meaning.typed, note=messages.note), flags


def build_parser(command: str | None = None, *, shows_all: bool = False) -> "_Parser":
    """Return the parser of the command line.

    Args:
        command: the command that will be parsed; the others get no flags for settings. None: all get them.
        shows_all: whether the help of a command shows all settings.
    """
    parser = _Parser(
        prog="levserve",
        description="An OpenAI-compatible inference service for fine-tuned models, on JAX.",
        epilog="`levserve COMMAND --help` explains a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", "-V", action="store_true", help="print the versions and exit")
    commands = _Commands(parser, command, shows_all=shows_all)
    serve = commands.add_parser(
        "serve",
        help="serve a checkpoint; without MODEL, the demo model",
        description="Serve a checkpoint behind OpenAI's API.",
        usage="levserve serve [MODEL] [--SETTING VALUE ...]",
    )
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a folder, gs://bucket/folder, hf://org/name[/folder][@revision], or org/name of the Hugging Face "
        "Hub; without it, the demo model",
    )
    serve.add_argument(
        "--profile-start",
        type=Path,
        metavar="FILE.png",
        help="draw the start's timeline once it is ready (.png, .svg or .pdf; needs matplotlib)",
    )
    commands.add_settings(serve)
    prewarm = commands.add_parser(
        "prewarm",
        help="make a checkpoint's bundle ahead of traffic",
        description="Compile a checkpoint's executables on this accelerator and keep them as a bundle, so that a start "
        "compiles nothing.",
        usage="levserve prewarm [MODEL] [--check] [--all] [--target TARGET] [--SETTING VALUE ...]",
    )
    prewarm.add_argument("model", nargs="?", metavar="MODEL", help="the checkpoint, as for serve")
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
    commands.add_settings(prewarm)
    _add_batch(commands)
    _add_compare(commands)
    _add_copies(commands)
    add_smoke(commands)
    completion = commands.add_parser(
        "completion", help="print a script with which a shell completes commands and flags"
    )
    completion.add_argument("shell", choices=SHELLS, help='as in: eval "$(levserve completion bash)"')
    parser.commands = commands.parsers
    return parser


class _Commands:
    """The commands of the parser, of which one gets flags for the settings."""

    def __init__(self, parser: argparse.ArgumentParser, command: str | None, *, shows_all: bool) -> None:
        self._commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        self._command = command
        self._shows_all = shows_all
        self.parsers: dict[str, argparse.ArgumentParser] = {}

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Add a command."""
        options.setdefault("argument_default", argparse.SUPPRESS)
        parser = self._commands.add_parser(name, allow_abbrev=False, formatter_class=_Formatter, **options)
        self.parsers[name] = parser
        return parser

    def add_settings(self, parser: argparse.ArgumentParser) -> None:
        """Add a flag for every setting, and those of vLLM."""
        if self._command is not None and self.parsers.get(self._command) is not parser:
            return
        parser.add_argument("--help-all", action=setting_flags.ShowAllHelp)
        parser.epilog = ALSO_VARIABLES
        setting_flags.add_settings(parser, shows_all=self._shows_all)
        vllm.add_flags(parser)


class _Formatter(argparse.HelpFormatter):
    """Help with room for long flags."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def _add_batch(commands: _Commands) -> None:
    batch = commands.add_parser(
        "batch",
        help="answer batch files (OpenAI's format) without a port",
        description="Answer every line of batch files, in one process or many; a killed run goes on.",
        usage="levserve batch IN OUT [--shard I/N] [--single] [--max-error-rate R] [--SETTING VALUE ...]",
    )
    batch.add_argument("source", metavar="IN", help="a batch file or a folder of some: a path or gs://bucket/prefix")
    batch.add_argument("target", metavar="OUT", help="a file, for one local file; a folder/ or gs://bucket/prefix")
    batch.add_argument("--shard", metavar="I/N", help="which of N processes, from 0; default: as the job says")
    batch.add_argument("--shards", metavar="N", help="processes, if a job says only its index")
    batch.add_argument("--single", action="store_true", help="join all parts into answers.jsonl, too")
    batch.add_argument("--max-error-rate", type=_rate, metavar="R", help="lines that may fail: 0 to 1, the default")
    commands.add_settings(batch)


def _add_compare(commands: _Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="measure how much two ways to serve a checkpoint differ over a text",
        description="Print the perplexity of a text under two ways to serve a checkpoint, the KL divergence of "
        "their next tokens, how often the most probable token is the same, and the largest difference of a logit. "
        "Each setting holds for both ways.",
        usage="levserve compare FIRST SECOND --text FILE [--SETTING VALUE ...]",
    )
    for name in ("first", "second"):
        example = "settings of this way, such as 'QUANTIZATION=int8 DTYPE=bfloat16'; '' for none"
        compare.add_argument(name, metavar=name.upper(), help=example)
    compare.add_argument("--text", type=Path, required=True, metavar="FILE", help="the text, in UTF-8")
    commands.add_settings(compare)


def _add_copies(commands: _Commands) -> None:
    """Add the commands that copy a checkpoint from one place to another."""
    imports = commands.add_parser(
        "import",
        help="copy a checkpoint from the Hugging Face Hub into a bucket",
        description="Copy a checkpoint from the Hugging Face Hub into a bucket, through memory and not through a disk. "
        "Every file is verified; an import that was interrupted goes on with the files that are missing.",
    )
    imports.add_argument("source", metavar="hf://ORG/NAME[@REVISION]", help="the repository; HF_TOKEN if it is gated")
    imports.add_argument("target", metavar="gs://BUCKET/FOLDER", help="an empty folder, or one of an earlier import")
    check = commands.add_parser(
        "check",
        help="say what of a checkpoint would be served, left out or refused, without reading its weights",
        description="Read the small files and the headers of a checkpoint as a start does, and print as a table what "
        "would be served, left out or refused. The exit code is 0 if it would be served.",
    )
    check.add_argument("source", metavar="SOURCE", help="gs://bucket/folder, hf://org/name[@revision] or a folder")
    convert = commands.add_parser(
        "convert",
        help="write a checkpoint of pickled weights (pytorch_model.bin) as safetensors, or merge an adapter into one",
        description="Write a checkpoint of pickled weights as safetensors, with its configuration and tokenizer, into "
        "a folder or a bucket. Nothing in a pickle is executed. With an adapter, write any checkpoint with the adapter "
        "merged into it.",
    )
    convert.add_argument("source", metavar="SOURCE", help="gs://bucket/folder, hf://org/name[@revision] or a folder")
    convert.add_argument("target", metavar="TARGET", help="gs://bucket/folder or a folder: a new one")
    convert.add_argument("--adapter", metavar="ADAPTER", help="an adapter (LoRA) in the format of PEFT, to merge")


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate <= 1:
        raise ValueError
    return rate


def _refuse_word(parser: argparse.ArgumentParser, command: str, word: str) -> NoReturn:
    """Exit with the flag that an unknown word is probably meant to be."""
    known = [*map(setting_flags.flag_of, Settings.model_fields), *vllm.flags()]
    flag = meant(word, known) if word.startswith("-") else None
    hint = f"; did you mean {flag}?" if flag else "."
    parser.exit(2, f"levserve {command}: {word} is unknown{hint}\n`levserve {command} --help` shows what there is.\n")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are two lines."""

    commands: dict[str, argparse.ArgumentParser] | None = None  # by name; of the root only

    @override
    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - the stub has overloads
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse the words of a command line in any of the forms that people type."""
        if self.commands is not None and args is not None:
            args = normalized(args, setting_flags.switches() | vllm.switches())
        return super().parse_known_args(args, namespace)

    @override
    def error(self, message: str) -> NoReturn:
        """Exit with the error and the command that explains it; the usage would fill a screen with settings."""
        self.exit(2, f"{self.prog}: {message}\n`{self.prog} --help` shows what there is.\n")


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
        from service.offline.shards.command import run_batch

        shard, shards, rate = flags.get("shard"), flags.get("shards"), flags.get("max_error_rate")
        return run_batch(
            settings,
            str(flags["source"]),
            str(flags["target"]),
            read_shard(None if shard is None else str(shard), None if shards is None else str(shards)),
            is_single=bool(flags.get("single")),
            max_error_rate=rate if isinstance(rate, float) else None,
        )
    if flags["command"] == "compare":
        from service.offline.compare import compare

        given = {name: value for name, value in flags.items() if name in Settings.model_fields}
        ways, config = (str(flags["first"]), str(flags["second"])), flags.get("config")
        return compare(ways, Path(str(flags["text"])), given, config if isinstance(config, Path) else None)
    if flags["command"] in ("check", "import", "convert"):
        return _run_on_source(str(flags["command"]), flags, settings)
    from service.server.app import serve

    picture = flags.get("profile_start")
    if isinstance(picture, Path):
        _check_picture(picture)
    serve(settings, picture if isinstance(picture, Path) else None)
    return 0


def _run_on_source(command: str, flags: dict[str, object], settings: Settings) -> int:
    """Run a command that reads a checkpoint and serves nothing."""
    source = str(flags["source"])
    if command == "check":
        from service.offline.check import check

        return check(source, settings)
    if command == "import":
        from service.offline.import_checkpoint import import_checkpoint

        return import_checkpoint(source, str(flags["target"]), emulator_host=settings.storage_emulator_host)
    from service.offline.convert import convert

    adapter = flags.get("adapter")
    return convert(source, str(flags["target"]), settings, str(adapter) if adapter else None)


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
        raise SettingsError(
            "--profile-start", "matplotlib draws the picture, and is not installed. Install matplotlib."
        )


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
