"""Every field of every object that clients send: its default, its limits, and its name in each refusal."""

import json

import jsonschema
import pytest
from pydantic import ValidationError

from service.api.schema.wire import WireObject, checked, parse
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from tests.api.schema.generation_requests import GENERATION_REQUESTS
from tests.api.schema.message_requests import MESSAGE_REQUESTS
from tests.api.schema.ollama_requests import OLLAMA_REQUESTS
from tests.api.schema.other_requests import OTHER_REQUESTS
from tests.api.schema.parts_of_requests import PARTS
from tests.api.schema.values import OBJECT, REQUIRED

MAX_CHECKED_ITEMS = 4096  # of a list against a JSON schema, for the time that it takes
OBJECTS = GENERATION_REQUESTS | MESSAGE_REQUESTS | OTHER_REQUESTS | OLLAMA_REQUESTS | PARTS
FIELDS = [(kind, name) for kind, (_, fields) in OBJECTS.items() for name in fields]


each_field = pytest.mark.parametrize(("kind", "name"), FIELDS)


def read(kind, **fields):
    return parse(kind, json.dumps(OBJECTS[kind][0] | fields).encode())


def attribute(kind, name):
    return next(own for own, info in kind.model_fields.items() if name == (info.alias or own))


def kinds_of(kind=WireObject):
    return {below for child in kind.__subclasses__() for below in (child, *kinds_of(child))}


def test_every_field_of_every_object_is_in_the_table():
    """Those that are missing are the common parts of several, and the form of recordings, which is no JSON."""
    common = {
        "SamplingFields", "SharedFields", "GenerationRequest", "VariableFields", "TemplateFields", "EncoderRequest",
        "PairsRequest", "OllamaRequest", "_Readable", "AudioRequest",
    }  # fmt: skip
    of_schema = {kind for kind in kinds_of() if kind.__module__.startswith("service.api.schema")}
    assert {kind.__name__ for kind in of_schema - OBJECTS.keys()} == common
    for kind, (_, fields) in OBJECTS.items():
        assert {info.alias or name for name, info in kind.model_fields.items()} == fields.keys()


@each_field
def test_a_field_that_is_left_out_or_null_has_its_default_or_is_missing(kind, name):
    default = OBJECTS[kind][1][name].default
    body = {key: value for key, value in OBJECTS[kind][0].items() if key != name}
    # SGLang's `rid` asks for its form of an answer even as null.
    for document in (body,) if name == "rid" else (body, body | {name: None}):
        if default is REQUIRED and name in OBJECTS[kind][0]:
            with pytest.raises(MissingParameter) as caught:
                checked(kind, document)
            assert caught.value.param == (
                name if name != "messages" or kind.__name__ != "TokenizeRequest" else "prompt"
            )
        else:
            found = getattr(checked(kind, document), attribute(kind, name))
            assert (type(found), found) == (type(default), default)


@each_field
def test_a_value_within_the_limits_is_taken_as_it_is(kind, name):
    field = OBJECTS[kind][1][name]
    for value in field.values.taken:
        parsed = read(kind, **field.needs(value) | {name: value})
        written = parsed.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
        # A choice of tools that is one word is written as the word.
        found = written[name] if isinstance(written, dict) else getattr(parsed, name)
        assert found == field.values.reads(value)


@each_field
def test_a_value_beyond_the_limits_is_refused_by_the_fields_name(kind, name):
    field = OBJECTS[kind][1][name]
    for value in (*field.values.refused, *field.values.unstated):
        with pytest.raises((InvalidParameter, MissingParameter, UnsupportedParameter)) as caught:
            read(kind, **field.needs(value) | {name: value})
        param = caught.value.param
        assert param == name or param.startswith((f"{name}.", f"{name}["))
        assert f"'{param}'" in caught.value.message


@each_field
def test_the_document_of_the_interface_states_the_same_limits(kind, name):
    document = kind.model_json_schema()
    values = OBJECTS[kind][1][name].values
    stated = {"$defs": document.get("$defs", {})} | document["properties"][name]
    is_valid = jsonschema.Draft202012Validator(stated).is_valid
    assert [value for value in filter(is_short, values.taken) if not is_valid(value)] == []
    assert [value for value in filter(is_short, values.refused) if is_valid(value)] == []


def is_short(value):
    return not isinstance(value, list) or len(value) <= MAX_CHECKED_ITEMS


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, n in FIELDS if OBJECTS[k][1][n].values.wrong_items is not None]
)
def test_the_first_fault_of_a_list_ends_its_check(kind, name):
    """So the longest list costs no more errors than the shortest."""
    field = OBJECTS[kind][1][name]
    items = field.values.wrong_items
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(OBJECTS[kind][0] | field.needs(items) | {name: items})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_field_of_no_object_is_accepted_and_named_at_any_depth(kind):
    base, fields = OBJECTS[kind]
    inner = {n: value for n, value in base.items() if isinstance(value, dict) and fields[n].values is not OBJECT}
    bodies = {"mood": {"mood": 1}} | {f"{name}.mood": {name: value | {"mood": 1}} for name, value in inner.items()}
    for param, changed in bodies.items():
        assert [(field.path, field.is_known) for field in read(kind, **changed).ignored] == [(param, False)]
