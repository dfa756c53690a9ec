"""What the command line says to a stranger; tests/test_exit.py has the ends of commands."""

import pytest

from service.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ["required: COMMAND", "`levserve --help`"]),
        (["serv"], ["'serv'", "'serve'", "`levserve --help`"]),
        (["batch"], ["IN.jsonl, OUT.jsonl", "`levserve batch --help`"]),
        (["serve", "--max-model-lenn", "3"], ["did you mean --max-model-len?", "`levserve serve --help`"]),
        (["serve", "what"], ["levserve serve: what is unknown.", "`levserve serve --help`"]),
    ],
)
def test_a_wrong_command_line_gets_two_lines_that_lead_on(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert len(lines) == 2
    for words in said:
        assert words in "\n".join(lines)
