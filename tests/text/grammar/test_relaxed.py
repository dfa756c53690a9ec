"""Schemas that need not be enforced whole: what a grammar cannot hold is left out, named, and only ever widens them."""

import json
import time

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.text.grammar import definition, schema
from service.text.grammar.exclusive import are_exclusive
from service.text.grammar.schema import reduced

Validator = jsonschema.Draft202012Validator
LOOKAHEAD = "^(?!x).*$"
TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("part", "kept", "left_out"),
    [
        ({"type": "string", "pattern": LOOKAHEAD}, {"type": "string"}, ["pattern"]),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, ["uniqueItems"]),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, {"type": "object"}, ["propertyNames"]),
        ({"not": {}, "type": "string"}, {"type": "string"}, ["not"]),
        ({"if": {}, "then": {"maxLength": 1}, "else": False}, {}, ["if", "then", "else"]),
        ({"type": "string", "contentEncoding": "base64"}, {"type": "string"}, ["contentEncoding"]),
        ({"dependentRequired": {"a": ["b"]}}, {}, ["dependentRequired"]),
        ({"dependentSchemas": {"a": {}}}, {}, ["dependentSchemas"]),
        ({"type": "string", "format": "binary"}, {"type": "string"}, ["format"]),
        ({"type": "number", "multipleOf": 0.01}, {"type": "number"}, ["multipleOf"]),
        ({"type": "string", "maxLength": 524288}, {"type": "string"}, ["maxLength"]),
        ({"type": "array", "maxItems": 10**7}, {"type": "array"}, ["maxItems"]),
        ({"contains": {}, "minContains": 2}, {}, ["contains", "minContains"]),
        ({"unheard": {"of": 1}}, {}, ["unheard"]),
        ({"$ref": "https://example.com/schema"}, {}, ["$ref"]),
        ({"$ref": "#/$defs/missing", "maxLength": 1}, {"maxLength": 1}, ["$ref"]),
        ({"type": "text", "minimum": "1", "required": True}, {}, ["type", "minimum", "required"]),
        ({"items": 3}, {"items": True}, ["items"]),
        ({"anyOf": [{"not": {}}, {"type": "null"}]}, {"anyOf": [{}, {"type": "null"}]}, ["anyOf[0].not"]),
        ({"allOf": [{"not": {}}, 1]}, {"allOf": [{}, True]}, ["allOf[0].not", "allOf[1]"]),
        ({"oneOf": [{"maxLength": 1}, {"minimum": 3}]}, {"anyOf": [{"maxLength": 1}, {"minimum": 3}]}, ["oneOf"]),
        (
            {"oneOf": [{"maxLength": 1}, {"minimum": 3}], "anyOf": [{}]},
            {"anyOf": [{}], "allOf": [{"anyOf": [{"maxLength": 1}, {"minimum": 3}]}]},
            ["oneOf"],
        ),
        (
            {"oneOf": [{"type": "string", "not": {}}, {"type": "null"}]},
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            ["oneOf[0].not"],
        ),
        ({"enum": ["a"], "nullable": True}, {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ["nullable"]),
        ({"patternProperties": {LOOKAHEAD: {}}, "additionalProperties": False}, {},
         ["patternProperties", "additionalProperties"]),
        ({"properties": [], "additionalProperties": {"type": "null"}}, {}, ["properties", "additionalProperties"]),
        ({"prefixItems": [], "items": False}, {}, ["prefixItems", "items"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, {"minimum": -0.5}, ["exclusiveMaximum"]),
        ({"allOf": [{"exclusiveMaximum": 0}, {"minimum": -0.5}]}, {"allOf": [{}, {"minimum": -0.5}]},
         ["allOf[0].exclusiveMaximum"]),
        ({"minProperties": 3}, {}, ["minProperties"]),
        ({"items": {"$id": "http://example.com/a", "$ref": "#/items"}}, {"items": True}, ["items.$id"]),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_left_out_and_named(part, kept, left_out):
    relaxed = []
    whole = {"type": "object", "properties": {"v": part}}
    assert reduced(whole, "field", relaxed) == {"type": "object", "properties": {"v": kept}}
    assert relaxed == [f"field.properties.v.{path}" for path in left_out]


@pytest.mark.parametrize(
    "whole",
    [TREE, {"description": "x" * schema.MAX_SCHEMA_BYTES}],
    ids=["infinite", "too large"],
)
def test_a_schema_that_cannot_be_read_is_that_of_any_object(whole):
    relaxed = []
    assert definition.json_part(whole, "field", relaxed=relaxed) == definition.ANY_OBJECT
    assert relaxed == ["field"]


def test_what_is_too_deep_or_too_much_is_left_out_where_it_begins_to_be():
    deep = {"type": "string"}
    for _ in range(schema.MAX_DEPTH + 5):
        deep = {"items": deep}
    for whole in (
        deep,
        {"properties": {str(i): {} for i in range(schema.MAX_PROPERTIES + 1)}, "required": ["0"]},
        {"$defs": {str(i): {} for i in range(300)}, "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(300)]},
    ):
        relaxed = []
        assert reduced(whole, "field", relaxed)
        assert relaxed


ALTERNATIVES = {"$defs": {"a": {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}}}


@pytest.mark.parametrize(
    ("alternatives", "expected"),
    [
        ([{"type": "string"}, {"type": ["number", "null"]}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"const": 1}, {"enum": [2, "1", True]}], True),
        ([{"const": 1}, {"enum": [1.0]}], False),
        ([{"const": [1]}, {"const": [2]}], False),
        ([{"type": "string"}], True),
        ([{"type": "string"}, {}], False),
        ([{"type": "string"}, True], False),
        ([{"type": "string", "nullable": True}, {"type": "null"}], False),
        ([{"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}, {"$ref": "#/$defs/a"}], True),
        ([{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}, {"$ref": "#/$defs/a"}], False),
        ([{"type": "object", "properties": {"k": {"const": "b"}}}, {"$ref": "#/$defs/a"}], False),
        ([{"properties": {"k": {"const": c}}, "required": ["k"]} for c in "bc"], False),
        ([{"type": "string"}, {"$ref": "#/$defs/missing"}], False),
    ],
)
def test_alternatives_are_exclusive_where_that_is_plain(alternatives, expected):
    assert are_exclusive(alternatives, ALTERNATIVES) is expected
    relaxed = []
    reduced({"oneOf": alternatives, **ALTERNATIVES}, "field", relaxed)
    assert ("field.oneOf" not in relaxed) is expected


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "a", "ab", "x1", "\x00"]))
NAMES = st.sampled_from(["a", "b", "ab"])
VALUES = st.one_of(
    st.dictionaries(NAMES, SCALARS, max_size=2),
    st.recursive(
        SCALARS, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(NAMES, v, max_size=3)), max_leaves=6
    ),
)
PATTERNS = st.sampled_from(["^a", "^(?!a)", "^.{2}$"])
COUNTS = st.sampled_from([0, 1, 2, 524_288])
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]


def keywords_of(schemas):
    """Return a strategy of schemas with some of all keywords of draft 2020-12, whatever they mean together."""
    lists, maps = st.lists(schemas, min_size=1, max_size=3), st.dictionaries(NAMES, schemas, max_size=3)
    counts = ("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties")
    optional = {
        "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, unique=True)),
        "const": VALUES,
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), lists),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "propertyNames"), schemas),
        **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), schemas),
        **dict.fromkeys(counts, COUNTS),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.sampled_from([0, 1, 0.5])),
        "multipleOf": st.sampled_from([2, 0.5, 0.01]),
        "properties": maps,
        "dependentSchemas": maps,
        "patternProperties": st.dictionaries(PATTERNS, schemas, max_size=2),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "uniqueItems": st.booleans(),
        "pattern": PATTERNS,
        "contentEncoding": st.just("base64"),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        "x-note": VALUES,
        "nothing": VALUES,
    }
    related = [  # keywords that concern one another
        ["properties", "patternProperties", "additionalProperties", "required"],
        ["prefixItems", "items", "minItems", "type"],
        ["oneOf", "anyOf", "allOf", "not"],
        sorted(optional),
    ]
    return (
        st.sampled_from(related)
        .flatmap(lambda names: st.lists(st.sampled_from(names), max_size=4, unique=True))
        .flatmap(lambda names: st.fixed_dictionaries({name: optional[name] for name in names}))
    )


SCHEMAS = st.recursive(st.one_of(st.booleans(), st.just({})), keywords_of, max_leaves=8)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(part=SCHEMAS, a=SCHEMAS, b=SCHEMAS, values=st.lists(VALUES, min_size=3, max_size=12))
def test_whatever_satisfies_a_schema_satisfies_it_relaxed(part, a, b, values):
    whole = {"allOf": [part], "$defs": {"a": a, "b": b}}
    relaxed = []
    result = reduced(whole, "field", relaxed)
    if not relaxed:
        assert result == reduced(whole, "field") or "oneOf" in str(whole)
    original, kept = Validator(whole), Validator(result)
    for value in values:
        try:
            if not original.is_valid(value):
                continue
            assert kept.is_valid(value), (whole, result, value)
        except RecursionError:  # references without an end
            return


@pytest.mark.parametrize(
    "whole",
    [
        {f"k{i}": 1 for i in range(10_000)},
        {"anyOf": [{"oneOf": [{"const": i} for i in range(60)]} for _ in range(120)]},
        {"$defs": {"e": {"enum": list(range(6000))}}, "anyOf": [{"oneOf": [{"$ref": "#/$defs/e"}] * 64}] * 60},
        {"properties": {f"p{i}": {"pattern": LOOKAHEAD} for i in range(3000)}},
        {"anyOf": [{"$ref": f"#/{i}"} for i in range(6000)]},
    ],
    ids=["keywords", "alternatives", "references", "patterns", "nowhere"],
)
def test_a_hostile_schema_takes_bounded_time_and_names_a_bounded_number(whole):
    assert len(json.dumps(whole)) <= schema.MAX_SCHEMA_BYTES
    relaxed, start_s = [], time.process_time()
    definition.json_part(whole, "field", relaxed=relaxed)
    assert len(relaxed) <= schema.MAX_RELAXED
    assert time.process_time() - start_s < 5
