"""Calls that each family's grammar lets a model write that has learnt nothing: they parse, and are the tools' own."""

import codecs
import json
import random
from functools import lru_cache

import jsonschema
import pytest

from service.text.formats.families import FAMILIES
from service.text.formats.grammar import CallableTool, CallRules, Reasoning, answer_grammar
from service.text.formats.parameters import parameters_of
from service.text.formats.parts import Arguments, CallStart, Content, Thought
from service.text.formats.reader import AnswerReader, mark_ids
from service.text.grammar import definition
from service.text.grammar.compiler import GrammarCompiler
from service.text.tokenizer import Tokenizer
from tests.text.grammar.random_walks import allowed_tokens
from tests.text.small_tokenizers import byte_level

END = 1


def closed(required=(), **properties):
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False
    }  # fmt: skip


TEXT, SHORT = {"type": "string"}, {"type": "string", "maxLength": 5}
SCHEMAS = {
    "get_weather": closed(["city", "days"], city=SHORT, days={"type": "integer", "minimum": 0, "maximum": 9}),
    "clock": closed(),
    "server.tool/read:it": closed(["q"], q={"enum": ["x", 'a "b"', "it's"]}),
    "flags": closed(["on"], on={"type": "boolean"}, off={"type": ["boolean", "null"]}),
    "sizes": closed(["of"], of={"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}),
    "at": closed(["place"], place=closed(["x"], x={"type": "integer"}, label=SHORT)),
    "either": closed(["v"], v={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "optional": closed(a=SHORT, b={"type": "integer"}, c={"const": 3}),
    "nested": closed(["rows"], rows={"type": "array", "maxItems": 1, "items": closed(["k"], k=SHORT)}),
    "write": closed(["text"], text=TEXT | {"maxLength": 12}),
    "any_text": closed(["text"], text=TEXT),
    "anything": {"type": "object"},
}


def tool_of(name):
    part = definition.json_part(SCHEMAS[name], "field")
    return CallableTool(name, part, parameters_of(part, "field"))


TOOLS = {name: tool_of(name) for name in SCHEMAS}
TEXTS = {name: {p.name for p in tool.parameters.stated if p.is_text} for name, tool in TOOLS.items()}
FORMS = [pytest.param(index, id=f"{form.name}-{index}") for index, form in enumerate(FAMILIES)]


@lru_cache
def compiler_of(index, has_tokens):
    backend = byte_level(600)
    if has_tokens:
        backend.add_special_tokens([mark for mark in FAMILIES[index].marks if mark != "<think>"])
    tokenizer = Tokenizer(backend)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({END}))


@lru_cache
def closing_ids_of(index, has_tokens):
    """Return the tokens that may end what a form has begun."""
    tokenizer = compiler_of(index, has_tokens).tokenizer
    begins = {i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes_of(i)[:1] in b"\"'}])<"}
    return begins | {END, *mark_ids(FAMILIES[index], tokenizer).values()}


def walk(index, tools, *, has_tokens, seed, allows_several=True, max_tokens=400, reasoning=None):
    """Return the parts of a random answer that must call tools, or None if it became too long."""
    form, compiler = FAMILIES[index], compiler_of(index, has_tokens)
    tokenizer, rng = compiler.tokenizer, random.Random(seed)
    ids = mark_ids(form, tokenizer)
    allows_several = allows_several and form.allows_several
    rules = CallRules(tools, is_required=True, allows_several=allows_several, reasoning=reasoning)
    parts = answer_grammar(form, rules, ids, tokenizer.special_ids - {END})
    matcher = compiler.compile(parts, "tools").matcher({END})
    begins = Thought if reasoning is not None and not reasoning.open else None
    reader = AnswerReader(form, ids, text_names=TEXTS, begins=begins)
    decoder, found = codecs.getincrementaldecoder("utf8")("replace"), []
    closing_ids = closing_ids_of(index, has_tokens)
    for _ in range(max_tokens):
        allowed = allowed_tokens(matcher, tokenizer.vocab_size)
        closing = [i for i in allowed if i in closing_ids]
        token_id = rng.choice(closing if closing and rng.random() < 0.6 else allowed)
        if token_id == END:
            return [*found, *reader.flush()]
        matcher.accept(token_id)
        found += reader.push(decoder.decode(tokenizer.token_bytes_of(token_id)), token_id)
    return None


def check(index, names, **options):
    """Return whether a walk ended; check its calls."""
    parts = walk(index, [TOOLS[name] for name in names], **options)
    if parts is None:
        return False
    called = [part.name for part in parts if isinstance(part, CallStart)]
    assert called, parts
    assert not any(isinstance(part, Content) and not FAMILIES[index].has_headers for part in parts), parts
    for number, name in enumerate(called):
        text = "".join(part.text for part in parts if isinstance(part, Arguments) and part.index == number)
        assert name in names, parts
        jsonschema.validate(json.loads(text), SCHEMAS[name])
    return True


@pytest.mark.parametrize("has_tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("index", FORMS)
def test_calls_are_those_of_the_tools_with_their_arguments(index, has_tokens):
    ended = [check(index, list(TOOLS), has_tokens=has_tokens, seed=seed) for seed in range(3)]
    ended += [check(index, [name], has_tokens=has_tokens, seed=1, allows_several=False) for name in TOOLS]
    assert any(ended)


@pytest.mark.grid
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("index", [form for form in FORMS if FAMILIES[form.values[0]].thinking])
def test_reasoning_may_come_before_calls_that_are_required(index, is_open):
    opening, closing = FAMILIES[index].thinking[0]
    names, reasoning = ["clock", "get_weather", "at"], Reasoning("" if is_open else opening, closing)
    ended = [check(index, names, has_tokens=seed % 2 == 0, seed=seed, reasoning=reasoning) for seed in range(4)]
    assert any(ended)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("index", FORMS)
def test_a_thousand_calls_are_those_of_the_tools(index):
    seeds = iter(range(100, 10_000))
    for name in TOOLS:
        ended = 0
        while ended < 10:
            ended += check(index, [name], has_tokens=bool(next(seeds) % 2), seed=next(seeds))
