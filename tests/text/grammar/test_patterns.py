import re

import pytest

from service.text.grammar.patterns import MAX_PATTERN_CHARS, rewritten


@pytest.mark.parametrize(
    "pattern",
    [
        "^a+b?$", "(?:ab|c)*", "[a-z]{2,5}", "[^a]", "[\\]\\[]", "[a-]", "\\d\\w\\D\\W", "\\.\\/\\-", "[\\d.]",
        "é\\u00e9\\x41", "[\\S]",
    ],
)  # fmt: skip
def test_what_both_dialects_read_alike_is_kept(pattern):
    assert rewritten(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        ("^.$", "a \u3000", "\n\r\u2028\u2029"), ("^\\s$", " \t\n\r\f\v", "\x85\u3000a"),
        ("^\\S$", "a1", " \x1c\x85\u3000\ufeff"), ("^[\\s]$", " \t", "\x85\u3000"),
        ("^[^\\s]$", "a.", " \x1c\x85\u3000\ufeff"),
    ],
)  # fmt: skip
def test_dots_and_spaces_match_no_more_than_in_any_dialect(pattern, matches, does_not):
    compiled = re.compile(rewritten(pattern))
    assert all(compiled.search(character) for character in matches)
    assert not any(compiled.search(character) for character in does_not)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)", "(?!a)", "(?<=a)b", "(?<name>a)", "(?P<name>a)", "(?i)a", "(a)\\1", "\\bfoo", "\\Aa", "a\\", "[a&&b]",
        "[a--b]", "[a~~b]", "[[:alpha:]]", "[a", "[]", "[^]", "[\\b]", "a" * (MAX_PATTERN_CHARS + 1),
    ],
)  # fmt: skip
def test_what_the_dialects_read_differently_is_refused(pattern):
    with pytest.raises(ValueError, match=r"support|backslash|end|longer"):
        rewritten(pattern)
