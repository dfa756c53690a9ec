"""Every text that a mask lets end satisfies its schema, whatever the model: here, random tokens of random schemas."""

import json
import random

import jsonschema
import pytest

from service.errors import InvalidParameter
from service.text.grammar import definition
from tests.text.grammar.random_walks import (
    BYTE_LEVEL,
    BYTE_LEVEL_ENDS,
    METASPACE,
    METASPACE_ENDS,
    compiler,
    random_schema,
    random_text,
)

Validator = jsonschema.Draft202012Validator
NUM_SCHEMAS = 250


@pytest.mark.parametrize(
    ("tokenizer", "ends"),
    [(BYTE_LEVEL, BYTE_LEVEL_ENDS), (METASPACE, METASPACE_ENDS)],
    ids=["byte-level", "byte-fallback"],
)
def test_a_text_that_ends_by_itself_satisfies_its_schema(tokenizer, ends):
    grammars, num_ended, num_refused = compiler(tokenizer, ends), 0, 0
    for seed in range(NUM_SCHEMAS):
        rng = random.Random(seed)
        schema = random_schema(rng)
        try:
            grammar = grammars.compile([definition.of_schema(schema, "schema").part], "schema")
        except InvalidParameter:
            num_refused += 1
            continue
        for _ in range(2):
            text, has_ended = random_text(grammar, tokenizer, ends, rng)
            num_ended += has_ended
            if has_ended:
                validator = Validator(schema, format_checker=Validator.FORMAT_CHECKER)
                errors = [error.message for error in validator.iter_errors(json.loads(text))]
                assert errors == [], (seed, schema, text)
    assert num_refused < NUM_SCHEMAS / 4
    assert num_ended > NUM_SCHEMAS
