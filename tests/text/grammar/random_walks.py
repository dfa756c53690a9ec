"""Random schemas, and random texts that a grammar allows."""

import numpy as np

from service.text.grammar.compiler import GrammarCompiler
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace

NUM_ROWS_BEYOND = 3  # an embedding may have more rows than its tokenizer has tokens
BYTE_LEVEL = Tokenizer(byte_level(600))
METASPACE = Tokenizer(metaspace(words=["▁the", "▁a", "▁", *'abeht{}[]",:0123456789-.é世', '","', "▁t", "he"]))
BYTE_LEVEL_ENDS, METASPACE_ENDS = frozenset({1, 2}), frozenset({2})
NUMBERS = (0, 1, -3, 2.5, 10, 100, -0.5, 7)
PATTERNS = ("^a+b?$", "[0-9]{2}", "^\\S+$", "x|y", "^[^\\s]{1,5}$", "\\d\\.\\w", "^.{2}$", "a.c")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration")
CONSTANTS = (1, "x", None, True, [1, 2], {"a": 1}, 1.5, '\n"')
NAMES = ("a", "b", "ab", "é", "x y", 'q"')


def compiler(tokenizer, ends):
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + NUM_ROWS_BEYOND, ends)


def allowed_tokens(matcher, num_rows):
    words = np.zeros((num_rows + 31) // 32, np.uint32)
    matcher.fill_mask(words)
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def random_text(grammar, tokenizer, ends, rng, max_tokens=250):
    """Return the text of random allowed tokens, and whether it ended by itself; it tends to close what is open."""
    matcher, token_ids = grammar.matcher(ends), []
    while len(token_ids) < max_tokens:
        allowed = allowed_tokens(matcher, tokenizer.vocab_size + NUM_ROWS_BEYOND)
        closing = [i for i in allowed if i in ends or tokenizer.token_bytes_of(i)[:1] in b'"}],']
        token_id = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
        if token_id in ends:
            return text_of(tokenizer, token_ids), True
        matcher.accept(token_id)
        token_ids.append(token_id)
    return text_of(tokenizer, token_ids), False


def text_of(tokenizer, token_ids):
    return b"".join(tokenizer.token_bytes_of(token_id) for token_id in token_ids).decode(errors="replace")


def random_schema(rng, depth=0):
    kind = min(rng.random(), 0.55) if depth > 3 else rng.random()
    if kind < 0.2:
        return _string(rng)
    if kind < 0.4:
        return _number(rng)
    if kind < 0.5:
        return rng.choice([{"type": "boolean"}, {"type": "null"}, True, {}, {"type": ["string", "null"]}])
    if kind < 0.6:
        return rng.choice([{"const": rng.choice(CONSTANTS)}, {"enum": rng.sample(CONSTANTS, 3)}])
    if kind < 0.72:
        return _array(rng, depth)
    if kind < 0.92:
        return _object(rng, depth)
    parts = [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 3))]
    return {rng.choice(["anyOf", "oneOf", "allOf"]): parts}


def _string(rng):
    if rng.random() < 0.3:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if rng.random() < 0.2:
        return {"type": "string", "format": rng.choice(FORMATS)}
    return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 9)}


def _number(rng):
    schema = {"type": rng.choice(["integer", "number"])}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            schema[keyword] = rng.choice(NUMBERS)
    return schema | ({"multipleOf": rng.choice([1, 2, 5, 0.5, 3])} if rng.random() < 0.2 else {})


def _array(rng, depth):
    schema = {"type": "array", "minItems": rng.randrange(3)}
    if rng.random() < 0.7:
        schema["items"] = random_schema(rng, depth + 1)
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, depth + 1)]
    return schema | ({"maxItems": rng.randrange(2, 5)} if rng.random() < 0.6 else {})


def _object(rng, depth):
    names = rng.sample(NAMES, rng.randrange(4))
    schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names}}
    schema["required"] = rng.sample(names, rng.randrange(len(names) + 1))
    if rng.random() < 0.7:
        schema["additionalProperties"] = rng.choice([False, False, True, random_schema(rng, depth + 1)])
    if rng.random() < 0.2:
        schema["patternProperties"] = {rng.choice(["^x", "^a", "b$"]): random_schema(rng, depth + 1)}
    if depth == 0 and rng.random() < 0.3:
        schema["properties"]["again"] = {"$ref": "#"}
    keywords = list(schema.items())
    rng.shuffle(keywords)  # the library reads them in order
    return dict(keywords)
