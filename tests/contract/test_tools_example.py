"""The examples of tool calls and JSON answers, against the demo process."""

import re
from pathlib import Path

import pytest

from examples.tools import run
from tests.contract.installation import python_of

README = Path(__file__).parents[2] / "examples" / "tools" / "README.md"
[SHOWN] = re.findall(r"```\n(> .*?)```", README.read_text(), re.DOTALL)
BEFORE_THE_AGENT, QUESTION, BY_THE_AGENT = SHOWN.partition(f"> {run.AGENT_QUESTION}\n")


def test_the_programs_print_what_their_page_shows(demo_service, capsys):
    run.show(demo_service.client(), "levserve-demo")
    assert capsys.readouterr().out == BEFORE_THE_AGENT


@pytest.mark.slow
def test_the_agent_prints_what_its_page_shows(demo_service):
    printed = run.show_agent([python_of(run.AGENT)], demo_service.url, "levserve-demo")
    assert printed == QUESTION + BY_THE_AGENT
