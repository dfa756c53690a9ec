import json

import pytest

from service.errors import InvalidParameter
from service.text.grammar import definition, schema
from service.text.grammar.endings import has_end
from service.text.grammar.schema import reduced

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


def nested(depth):
    return {"items": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "exclusiveMinimum": 2, "maximum": 2.5}, "exclusiveMinimum"),
        ({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0}, "exclusiveMaximum"),
        ({"allOf": [{"exclusiveMaximum": 0}, {"minimum": -0.5}]}, "allOf[0].exclusiveMaximum"),
        ({"not": {}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"contains": {}}, "contains"),
        ({"propertyNames": {}}, "propertyNames"),
        ({"dependentRequired": {}}, "dependentRequired"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"additionalItems": False}, "additionalItems"),
        ({"items": [{}], "prefixItems": [{}]}, "items"),
        ({"items": [{"not": {}}]}, "items[0].not"),
        ({"items": [{}], "additionalItems": {"not": {}}}, "additionalItems.not"),
        ({"nullable": True}, "nullable"),
        ({"type": "string", "enum": ["a"], "nullable": True}, "nullable"),
        ({"maxLenght": 3}, "maxLenght"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"$id": "http://example.com"}, "$id"),
        ({"$ref": "other.json"}, "$ref"),
        ({"$ref": "#/$defs/missing"}, "$ref"),
        ({"$ref": "#/$defs/list/7"}, "$ref"),
        ({"$ref": "#name"}, "$ref"),
        ({"$ref": 3}, "$ref"),
        ({"type": "text"}, "type"),
        ({"type": []}, "type"),
        ({"type": [["string"]]}, "type"),
        ({"minimum": "1"}, "minimum"),
        ({"minimum": True}, "minimum"),
        ({"maximum": 2**53 + 1}, "maximum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"multipleOf": 0.1}, "multipleOf"),
        ({"const": [1, {"a": 2**60}]}, "const"),
        ({"enum": []}, "enum"),
        ({"enum": ["\b\f\n\r\t", "\x7f"]}, "enum"),
        ({"const": {"a": ["b\x00"]}}, "const"),
        ({"const": {"\x1f": 1}}, "const"),
        ({"required": ["a\x0b"]}, "required"),
        ({"properties": {"\x0e": {}}}, "properties"),
        ({"enum": 1}, "enum"),
        ({"enum": [10**400]}, "enum"),
        ({"maxItems": -1}, "maxItems"),
        ({"maxItems": 1.0}, "maxItems"),
        ({"maxLength": 10**6}, "maxLength"),
        ({"minProperties": 2}, "minProperties"),
        ({"required": "a"}, "required"),
        ({"required": [1]}, "required"),
        ({"properties": []}, "properties"),
        ({"properties": {"p" * 100: 3}}, f"properties.{'p' * 64}"),
        ({"anyOf": []}, "anyOf"),
        ({"anyOf": {}}, "anyOf"),
        ({"anyOf": [{}, {"not": {}}]}, "anyOf[1].not"),
        ({"format": 1}, "format"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"pattern": 1}, "pattern"),
        ({"patternProperties": {"[": {}}}, "patternProperties"),
        ({"additionalProperties": "no"}, "additionalProperties"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_path(part, path):
    whole = {"type": "object", "properties": {"a": part}, "$defs": {"list": [{}]}}
    with pytest.raises(InvalidParameter) as caught:
        reduced(whole, "field")
    assert caught.value.param == f"field.properties.a.{path}"
    assert f"'{caught.value.param}'" in caught.value.message


@pytest.mark.parametrize("whole", [1, "x", None, []])
def test_a_schema_is_an_object_or_a_boolean(whole):
    with pytest.raises(InvalidParameter, match="'field': a schema is an object or a boolean"):
        reduced(whole, "field")


@pytest.mark.parametrize(
    ("whole", "problem"),
    [
        ({"description": "x" * schema.MAX_SCHEMA_BYTES}, "larger than"),
        (nested(schema.MAX_DEPTH + 1), "levels deep"),
        ({"const": json.loads("[" * 70 + "]" * 70)}, "levels deep"),
        ({"properties": {str(i): {} for i in range(schema.MAX_PROPERTIES + 1)}}, "properties at most"),
        (
            {"$defs": {str(i): {} for i in range(300)}, "anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(300)]},
            "definitions at most",
        ),
    ],
)
def test_a_schema_is_bounded(whole, problem):
    with pytest.raises(InvalidParameter, match=problem):
        reduced(whole, "field")


def test_annotations_and_keywords_that_constrain_nothing_are_left_out():
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://example.com", "title": "T",
        "description": "D", "default": 1, "examples": [1], "deprecated": True, "uniqueItems": False, "nullable": False,
        "discriminator": {"propertyName": "kind"}, "x-order": 3, "type": "integer",
    }  # fmt: skip
    assert reduced(whole, "field") == {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"exclusiveMinimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"minimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 0.5, "maximum": 0.75},
        {"minimum": -1, "exclusiveMaximum": 0},
    ],
)
def test_a_range_is_kept_if_it_holds_an_integer_or_leaves_none_out(schema):
    assert reduced(schema, "field") == schema


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["integer", "null"], "nullable": True}, {"type": ["integer", "null"]}),
        ({"type": "string", "enum": ["a", None], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"items": [{"type": "string"}], "additionalItems": False},
            {"prefixItems": [{"type": "string"}], "items": False},
        ),
        ({"items": [True]}, {"prefixItems": [True]}),
        ({"items": {"$id": "#name", "type": "null"}}, {"items": {"type": "null"}}),
        ({"type": "string", "pattern": None, "enum": None, "not": None}, {"type": "string"}),
        ({"const": None}, {"const": None}),
    ],
)
def test_shapes_of_other_drafts_and_dialects_that_mean_the_same_are_read_as_such(stated, meant):
    relaxed = []
    assert reduced(stated, "field") == reduced(stated, "field", relaxed) == meant
    assert relaxed == []


def test_a_schema_that_is_a_boolean_is_kept():
    assert reduced(True, "field") == {"anyOf": [True]}


def test_references_lead_into_the_definitions_of_the_result():
    whole = {
        "definitions": {"a/b": {"type": "string"}, "n~": {"$ref": "#/definitions/a~1b"}, "unused": {"not": {}}},
        "anyOf": [{"$ref": "#/definitions/n~0"}, {"$ref": "#/anyOf/2"}, {"type": "null"}, {"$ref": "#"}],
    }
    assert reduced(whole, "field") == {
        "anyOf": [{"$ref": "#/$defs/1"}, {"$ref": "#/$defs/2"}, {"type": "null"}, {"$ref": "#"}],
        "$defs": {"1": {"$ref": "#/$defs/3"}, "2": {"type": "null"}, "3": {"type": "string"}},
    }


def test_a_fault_in_a_definition_is_named_by_its_path():
    with pytest.raises(InvalidParameter) as caught:
        reduced({"$defs": {"node": {"uniqueItems": True}}, "items": {"$ref": "#/$defs/node"}}, "field")
    assert caught.value.param == "field.$defs.node.uniqueItems"


def test_a_format_of_dates_is_a_pattern_beside_those_that_are_there():
    got = reduced({"format": "date", "allOf": [{"maxLength": 10}]}, "field")
    assert [list(part) for part in got["allOf"]] == [["maxLength"], ["pattern"]]
    assert reduced({"format": "uuid"}, "field") == {"format": "uuid"}


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ({"$ref": "#"}, False),
        ({"allOf": [{"$ref": "#"}]}, False),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, True),
        ({"oneOf": [{"$ref": "#"}]}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]}, False),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{"$ref": "#"}]}, True),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{}], "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"const": {}, "$ref": "#"}, True),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, True),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE | {"type": "object", "required": ["next"]}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, False),
    ],
)
def test_a_schema_that_only_an_infinite_value_satisfies_is_found(whole, expected):
    assert has_end(reduced(whole, "field")) is expected
    if not expected:
        with pytest.raises(InvalidParameter, match="only an infinite value"):
            definition.of_schema(whole, "field")


STRICT = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "object", "properties": {}, "additionalProperties": False}},
}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"additionalProperties": True}, "field.additionalProperties"),
        ({"required": []}, "field.required"),
        ({"type": ["object", "null"]}, "field"),
        ({"properties": {"a": {"items": {"properties": {}}}}}, "field.properties.a.items.additionalProperties"),
        ({"properties": {"a": {"anyOf": [{"type": "object"}]}}}, "field.properties.a.anyOf[0].additionalProperties"),
        ({"$defs": {"b": {"type": "object"}}}, "field.$defs.b.additionalProperties"),
    ],
)
def test_a_strict_schema_leaves_nothing_out_and_adds_nothing(change, param):
    definition.of_schema(STRICT, "field", is_strict=True)
    definition.of_schema(STRICT | change, "field")
    with pytest.raises(InvalidParameter) as caught:
        definition.of_schema(STRICT | change, "field", is_strict=True)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "name",
    [
        "$anchor", "$comment", "$defs", "$schema", "$vocabulary", "default", "definitions", "deprecated", "description",
        "discriminator", "example", "examples", "externalDocs", "id", "readOnly", "title", "writeOnly", "xml",
    ],
)  # fmt: skip
def test_a_keyword_that_no_value_violates_is_taken_and_left_out(name):
    assert reduced({"type": "string", name: {}}, "field") == {"type": "string"}


@pytest.mark.parametrize("name", ["duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])
def test_the_format_of_a_text_is_left_to_the_library(name):
    assert reduced({"type": "string", "format": name}, "field") == {"type": "string", "format": name}
