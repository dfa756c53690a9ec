"""The example of tool calls and JSON answers, against the demo process."""

import re
from pathlib import Path

from examples.tools import run

README = Path(__file__).parents[2] / "examples" / "tools" / "README.md"


def test_the_example_prints_what_its_page_shows(demo_service, capsys):
    run.show(demo_service.client(), "levserve-demo")
    [shown] = re.findall(r"```\n(> .*?)```", README.read_text(), re.DOTALL)
    assert capsys.readouterr().out == shown
