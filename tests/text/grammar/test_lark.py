"""Regular grammars in Lark's syntax as patterns: what they allow is what the grammar does."""

import re

import pytest

from service.text.grammar.lark import pattern_of

MATCHES = [
    ('start: "a" "b"', ["ab"], ["a", "abc"]),
    ('start: "a" | "b"\n     | "c"', ["a", "b", "c"], ["ab", ""]),
    ('start: "a.b(c)\\n"', ["a.b(c)\n"], ["axb(c)\n"]),
    ("start: word+ // a comment\nword: /[a-z]+/ \" \"?", ["ab cd ", "ab"], ["", "A"]),
    ("start: A? [B] C*\nA: \"a\"\nB: \"b\"\nC: \"c\"", ["", "a", "bcc", "ab"], ["ba", "aa"]),
    ('start: ("a" | "b") ~ 2..3', ["ab", "bbb"], ["a", "abab"]),
    ('start: "a" ~ 2', ["aa"], ["a", "aaa"]),
    ('?start.2: x -> one\n  | "y"\n!x: "x"', ["x", "y"], ["xy"]),
    ("start: /a\\/b/", ["a/b"], ["ab"]),
    ("%import common.LF\nstart: \"a\" LF", ["a\n"], ["a"]),
    ("%import common (INT, WS_INLINE)\nstart: INT WS_INLINE INT", ["12 3"], ["12"]),
    ("%import common.CNAME -> NAME\nstart: NAME", ["_a1"], ["1a"]),
    ("start: (\n  \"a\"\n  \"b\"\n)", ["ab"], ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "matching", "others"), MATCHES)
def test_a_pattern_matches_the_texts_of_the_grammar(grammar, matching, others):
    pattern = re.compile(pattern_of(grammar))
    assert [text for text in matching if not pattern.fullmatch(text)] == []
    assert [text for text in others if pattern.fullmatch(text)] == []


def test_a_range_is_a_class_of_characters():
    assert pattern_of('start: "a".."z"') == r"(?:[\u{61}-\u{7a}])"


@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        ("", "no rule 'start'"),
        ('begin: "a"', "no rule 'start'"),
        ("start: other", "no rule 'other'"),
        ('start: "a" start?', "leads back to itself"),
        ('start: b\nb: "(" start ")"', "leads back to itself"),
        ('| "a"', "begins with no rule"),
        ("start", "begins no rule"),
        ('start: "a"\nstart: "b"', "its second one"),
        ('start: "a', "not supported"),
        ('start: "a"i', "without regard to case"),
        ("start: /a/i", "the flags 'i'"),
        ('start: ("a"', "')' is missing"),
        ('start: "a")', "')' is not supported there"),
        ('start: "a" ~ b', "a repetition has numbers"),
        ('start: "a" ~', "ends too early"),
        ('start: "ab".."c"', "a range is of two characters"),
        ('start: "\\q"', "is not supported"),
        ('start: "a"\n%ignore " "', "'%ignore'"),
        ("%import common\nstart: WS", "an import has no name"),
        ("%import python.NAME\nstart: NAME", "'%import'"),
        ("%import common.PYTHON\nstart: PYTHON", "'common.PYTHON'"),
        ("start: " + "(" * 100_000, "nested more than 64"),
        ("start: " + " | ".join(f'"{i}"' for i in range(5000)), "longer than 4096"),
        ("\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)), 'a40: "x"']), "longer than 4096"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_no_pattern_is_refused_with_the_cause(grammar, cause):
    with pytest.raises(ValueError, match=re.escape(cause)):
        pattern_of(grammar)
