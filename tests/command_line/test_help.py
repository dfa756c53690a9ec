"""The help of a command fits a screen; the whole of it has every setting in one group, with choices and default."""

import os
import subprocess
import sys

import pytest

from service import cli
from service.command_line.setting_flags import GROUPS, MAIN
from service.command_line.version import version_line
from service.settings import Settings


def printed(arguments, capsys, monkeypatch, width="80"):
    monkeypatch.setenv("COLUMNS", width)
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert not end.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "prewarm", "batch", "compare"])
def test_the_help_fits_a_screen(command, capsys, monkeypatch):
    lines = printed([command, "--help"], capsys, monkeypatch).splitlines()
    assert len(lines) <= 40
    for name in MAIN:
        assert f"--{name.replace('_', '-')}" in "\n".join(lines)


def test_every_setting_stands_in_one_group_of_the_whole_help(capsys, monkeypatch):
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(Settings.model_fields)
    text = printed(["serve", "--help-all"], capsys, monkeypatch, width="200")
    flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    assert {f"--{name.replace('_', '-')}" for name in names} <= set(flags)
    assert "--log-format auto|json|text" in text
    assert "Default: 8080." in text
    assert "vllm" not in "\n".join(flags)


def test_the_version_is_one_line(capsys, monkeypatch):
    for word in ("--version", "-V", "version"):
        assert printed([word], capsys, monkeypatch) == f"{version_line()}\n"
    assert version_line().startswith("levserve ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("levserve ser", ["serve"]),
        ("levserve serve --log-f", ["--log-format"]),
        ("levserve serve --log-format j", ["json"]),
        ("levserve smoke --ident", ["--identity-token"]),
    ],
)
def test_bash_completes(words, expected, capsys, monkeypatch):
    script = printed(["completion", "bash"], capsys, monkeypatch)
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _levserve; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def ended(arguments, **variables):
    """What a command prints on stderr as it ends with an error, without a terminal."""
    environment = {name: value for name, value in os.environ.items() if name.lower() not in Settings.model_fields}
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (1, 2)
    return done


def test_an_error_before_the_start_is_text_unless_json_is_asked_or_the_platform_reads_it():
    text = ended(["serve", "--port", "eighty"])
    assert text.stderr.startswith("levserve serve: error: --port: Input should be a valid integer")
    assert (len(text.stderr.splitlines()), text.stdout) == (1, "")
    for variables in ({"LOG_FORMAT": "json"}, {"K_SERVICE": "chat"}):
        done = ended(["serve", "--port", "eighty"], **variables)
        assert done.stdout.startswith('{"message": "--port: ')
    assert ended(["serve", "--port", "eighty"], K_SERVICE="chat", LOG_FORMAT="text").stdout == ""


def test_a_host_of_another_program_is_named_as_the_cause():
    done = ended(["serve", "--port", "0"], HOST="x86_64-conda-linux-gnu")
    [line] = done.stderr.splitlines()
    assert "The host is from HOST in the environment; it is no address of this machine" in line
    assert "LEVSERVE_HOST" in line
