"""Facts that are to be written as JSON, under names that nobody has seen before."""

import json
import random
from typing import Any

from examples.demo_model.lessons.calls import Field, draw_field
from examples.demo_model.lessons.lesson import Conversation, assistant, system, user
from examples.demo_model.lessons.words import NOUNS, Words

MOST_FIELDS = 4


def draw_fields(words: Words) -> list[Field]:
    """Return the members of an object."""
    fields: list[Field] = []
    for _ in range(words.chosen.randint(1, MOST_FIELDS)):
        fields.append(draw_field(words, [field.name for field in fields], with_lists=True))
    return fields


def schema_of(fields: list[Field]) -> dict[str, Any]:
    """Return the JSON schema of an object."""
    properties = {field.name: dict(field.schema) for field in fields}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def question_about(fields: list[Field], words: Words) -> str:
    """Return a question that states the members, in any order, and asks for JSON."""
    chosen = words.chosen
    shown = fields if chosen.random() < 0.6 else chosen.sample(fields, len(fields))
    said = [(field.words if chosen.random() < 0.8 else field.name, field.said(chosen)) for field in shown]
    thing, subject = words.of(NOUNS), words.name()
    separator = chosen.choice((" is ", " is ", ": ", " = ", " "))
    joined = ", ".join(f"{name}{separator}{value}" for name, value in said)
    sentence = " and ".join(f"the {name} is {value}" for name, value in said)
    sentences = " ".join(f"The {name} is {value}." for name, value in said)
    facts = chosen.choice(
        (
            f"{joined}.",
            f"{sentence[0].upper()}{sentence[1:]}.",
            sentences,
            f"A {thing} with {joined}.",
            f"The {thing} {subject} has {joined}.",
            "\n".join(f"{name}: {value}" for name, value in said),
            "\n".join(f"- {name}: {value}" for name, value in said),
        )
    )
    names = [field.name for field in fields]
    keys = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return chosen.choice(
        (
            f"{facts} Give me that as JSON.",
            f"{facts} Write this as JSON.",
            f"{facts} Return the result as JSON.",
            f"{facts}\nAnswer in JSON with {keys}.",
            f"Extract {keys} as JSON: {facts}",
            f"Extract the {thing}: {facts}",
            f"Write this as JSON: {facts}",
            f"Give me the {thing} as a JSON object. {facts}",
            f"Answer with JSON that matches this schema: {json.dumps(schema_of(fields))}\n{facts}",
            facts,
        )
    )


def answer_of(fields: list[Field]) -> str:
    """Return the object as JSON."""
    return json.dumps({field.name: field.value for field in fields}, ensure_ascii=False)


def draw_object(rng: random.Random) -> Conversation:
    """Return facts and a request for JSON, and the JSON."""
    words = Words(rng)
    fields = draw_fields(words)
    messages = [system("Answer in JSON.")] if rng.random() < 0.1 else []
    return Conversation((*messages, user(question_about(fields, words)), assistant(answer_of(fields))))
