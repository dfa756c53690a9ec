"""Scripts with which a shell completes the commands and flags of `levserve`."""

import argparse
import re

SHELLS = ("bash", "zsh")

BASH = """\
_levserve() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="COMMANDS"
  else
    case "$previous" in
VALUES
    esac
    if [ -z "$words" ] && [[ "$current" == -* ]]; then
      case "${COMP_WORDS[1]}" in
FLAGS
      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _levserve levserve
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: str, parsers: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script for a shell.

    Args:
        shell: one of SHELLS.
        parsers: the parser of each command, by name.
    """
    flags, choices = [], {}
    for command, parser in parsers.items():
        # Flags that the parser understands but shows in no help, as those of vLLM, are not offered.
        actions = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
        names = [name for action in actions for name in action.option_strings if name.startswith("--")]
        flags.append(f'        {command}) words="{" ".join(names)}" ;;')
        for action in actions:
            values = " ".join(map(str, action.choices or ())) or _choices(action.metavar)
            if values:
                choices[action.option_strings[-1]] = values
    values = [f'      {flag}) words="{words}" ;;' for flag, words in sorted(choices.items())]
    script = BASH.replace("COMMANDS", " ".join(parsers)).replace("VALUES", "\n".join(values))
    script = script.replace("FLAGS", "\n".join(flags))
    return ZSH + script if shell == "zsh" else script


def _choices(metavar: object) -> str:
    """Return the values that a placeholder such as `json|text` lists."""
    listed = isinstance(metavar, str) and re.fullmatch(r"[\w.]+(\|[\w.]+)+", metavar)
    return metavar.replace("|", " ") if listed and isinstance(metavar, str) else ""
