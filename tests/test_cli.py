"""What the command line says to a stranger; tests/test_exit.py has the ends of commands."""

import pytest

from service.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ["required: COMMAND", "`levserve --help`"]),
        (["serv"], ["'serv'", "'serve'", "`levserve --help`"]),
        (["batch"], ["required: IN, OUT", "`levserve batch --help`"]),
        (["serve", "--max-model-lenn", "3"], ["did you mean --max-model-len?", "`levserve serve --help`"]),
        (["serve", "a", "what"], ["levserve serve: what is unknown.", "`levserve serve --help`"]),
        (["serve", "--max_model_lenn", "3"], ["did you mean --max-model-len?"]),
        (["serve", "--Port", "3"], ["did you mean --port?"]),
        (["serve", "--enable-prefix", "3"], ["did you mean --enable-prefix-caching?"]),
        (["serve", "--model-u", "3"], ["--model-u is unknown; did you mean --model-uri?"]),
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
