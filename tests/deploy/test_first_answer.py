"""How many commands and decisions lie between a clone and an answered request, counted in the quickstart as printed.

A command is a line of a shell block up to the request, or up to the command that sends one itself. A decision is a
value that a person must look up or invent: a variable of a `make` line, elsewhere a placeholder such as `my-project`.
"""

import os
import pty
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.check_deployment import FENCE
from scripts.platform_rules.rules import RULES

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "deploy.md").read_text()
NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4}
OTHER = re.compile(r"make (?:deploy-[\w-]+|teardown)\b")


@dataclass(frozen=True)
class Way:
    """A way from a clone to an answer, and the bounds of issue 18."""

    section: str  # the beginning of its heading
    last: str  # what its last command begins with
    most_commands: int
    most_decisions: int
    is_answered: str  # the call that shows it


WAYS = {
    "the demo on Cloud Run": Way("The demo on Cloud Run", "gcloud run deploy", 1, 0, "gcloud run services describe"),
    "a model on an L4": Way("Your model", "make deploy-cloud-run", 4, 3, "levserve smoke"),
    "a model on a TPU of GKE": Way(
        "Your model", "make deploy-gke", 5, 4, "kubectl exec deployment/levserve --namespace=levserve -- levserve smoke"
    ),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def section(way: Way) -> tuple[str, str]:
    """The heading and the text of a way's section."""
    [found] = [part for part in re.split(r"^## ", QUICKSTART, flags=re.MULTILINE) if part.startswith(way.section)]
    heading, _, text = found.partition("\n")
    return heading, text


def lines_of(way: Way) -> list[str]:
    """The lines of a way's section, without those of another target, each on one line."""
    script = re.sub(r" *\\\n\s*", " ", "\n".join(FENCE.findall(section(way)[1])))
    lines = [line for line in script.splitlines() if line.strip() and not line.startswith("#")]
    return [line for line in lines if line.startswith(way.last) or not OTHER.match(line)]


def commands_of(way: Way) -> list[str]:
    """The commands up to the one after which the service answers."""
    lines = lines_of(way)
    number = next(number for number, line in enumerate(lines, 1) if line.startswith(way.last))
    return [command for line in lines[:number] for command in re.split(r" *(?:&&|;) *", line)]


def decisions_in(command: str) -> list[str]:
    """The values that a person puts into a command."""
    if command.startswith("make "):
        return re.findall(r"\b[A-Z]+=(\S+)", command)
    return re.findall(r"\bmy-[\w-]+|\$[A-Z]+|<\w+>", command)


@each_way
def test_the_commands_and_decisions_are_within_their_bounds(way):
    commands = commands_of(way)
    decisions = [value for command in commands for value in decisions_in(command)]
    assert len(commands) <= way.most_commands, commands
    assert len(decisions) <= way.most_decisions, decisions


@each_way
def test_the_heading_says_how_many_commands_there_are(way):
    [number] = re.findall(r": (\w+) commands?$", section(way)[0])
    assert NUMBERS[number] == len(commands_of(way))


@each_way
def test_these_commands_and_no_others_lead_to_an_answer(travel, way):
    commands = commands_of(way)
    request = [line for line in lines_of(way) if line.startswith("curl ")]
    journey = travel("\n".join([*commands, *request]))
    assert journey.code == 0, journey.said
    assert any(way.is_answered in call for call in journey.calls[-4:]), journey.calls
    for number in range(len(commands)):
        assert commands[number].startswith("gcloud auth") or way.last in commands[number], "a command that does nothing"


@pytest.mark.parametrize(
    "command", ["make deploy-x PROJECT=my-project A=b", "gcloud run deploy x --project=my-project --a=$B"]
)
def test_a_decision_is_counted(command):
    assert len(decisions_in(command)) == 2


@pytest.mark.parametrize("name", ["a model on an L4", "a model on a TPU of GKE"])
def test_what_is_still_asked_has_a_default(travel, name):
    """On a terminal a person is asked for what the command does not say: Enter must do."""
    commands = commands_of(WAYS[name])
    reader, writer = pty.openpty()
    os.write(reader, b"\n" * 20)
    try:
        journey = travel("\n".join(commands), stdin=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert journey.code == 0, journey.said
    assert re.search(r"\[\S+\]: ", journey.said)  # one without a default would have ended it


def test_at_least_sixty_documented_rules_are_held_against_plans_and_journeys():
    """`test_platform_rules` breaks each; `make check` fails where nothing is held against one."""
    assert len({(rule.name, rule.source) for rule in RULES}) >= 60
