"""Functions that nobody has seen before, and questions that state what to call them with."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.demo_model.lessons.lesson import Conversation, Message, assistant, system, user
from examples.demo_model.lessons.words import (
    DATE_FIELDS,
    FLAG_FIELDS,
    LIST_FIELDS,
    NOUNS,
    NUMBER_FIELDS,
    TEXT_FIELDS,
    TIME_FIELDS,
    VERBS,
    Words,
)

MOST_ARGUMENTS, MOST_TOOLS, MOST_TURNS = 3, 3, 3
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Use the tools.", "You are an agent. Call a tool when you need it.")


@dataclass(frozen=True)
class Field:
    """A parameter of a function, or a member of an object."""

    name: str
    schema: Mapping[str, Any]
    value: Any

    @property
    def words(self) -> str:
        """The name as people say it."""
        return self.name.replace("_", " ")

    def said(self, chosen: random.Random) -> str:
        """Return the value as people say it."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, list):
            return ", ".join(self.value[:-1]) + chosen.choice((", ", " and ")) + self.value[-1]
        text = str(self.value)
        if isinstance(self.value, str) and chosen.random() < 0.2:
            mark = chosen.choice("\"'")
            return f"{mark}{text}{mark}"
        return text


def draw_field(words: Words, taken: Sequence[str] = (), *, with_lists: bool = False) -> Field:
    """Return a field with a value."""
    chosen = words.chosen
    kinds = ["text"] * 11 + ["integer"] * 5 + ["number", "flag", "date", "time", "choice"] + ["list"] * with_lists
    while True:
        field = _field(words, chosen.choice(kinds))
        if field.name not in taken:
            return field


def _field(words: Words, kind: str) -> Field:
    chosen = words.chosen

    def name(usual: tuple[str, ...]) -> str:
        draw = chosen.random()
        if draw < 0.6:
            return words.of(usual)
        if draw < 0.85:
            return f"{words.of(NOUNS)}_{chosen.choice(usual)}" if draw < 0.75 else words.of(NOUNS)
        return words.made_up() if chosen.random() < 0.5 else f"{words.made_up()}_{words.of(NOUNS)}"

    def listed(draw: Callable[[], str], most: int) -> list[str]:
        return [draw() for _ in range(chosen.randint(2, most))]

    match kind:
        case "text":
            field = Field(name(TEXT_FIELDS), {"type": "string"}, words.text())
        case "integer":
            field = Field(name(NUMBER_FIELDS), {"type": "integer"}, words.integer())
        case "number":
            field = Field(name(NUMBER_FIELDS), {"type": "number"}, words.number())
        case "flag":
            field = Field(chosen.choice(FLAG_FIELDS), {"type": "boolean"}, chosen.random() < 0.5)
        case "date":
            field = Field(chosen.choice(DATE_FIELDS), {"type": "string"}, words.date())
        case "time":
            field = Field(chosen.choice(TIME_FIELDS), {"type": "string"}, words.time())
        case "choice":
            choices = listed(words.word, 4)
            field = Field(name(TEXT_FIELDS), {"type": "string", "enum": choices}, chosen.choice(choices))
        case _:
            values = listed(words.word, 3)
            field = Field(chosen.choice(LIST_FIELDS), {"type": "array", "items": {"type": "string"}}, values)
    return field


@dataclass(frozen=True)
class Function:
    """A function with the arguments of one call."""

    verb: str
    noun: str
    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        """The name of the function, in snake case; clients may use ASCII alone."""
        name = f"{self.verb}_{self.noun}" if self.noun else self.verb
        return name.encode("ascii", "ignore").decode()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call."""
        return {field.name: field.value for field in self.fields}

    @property
    def call(self) -> Message:
        """The assistant's turn that calls the function."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}

    def tool(self, chosen: random.Random) -> dict[str, Any]:
        """Return the description of the function in OpenAI's format, in one of the styles that clients have."""
        verb, noun = self.verb.replace("_", " "), self.noun.replace("_", " ")
        stated: dict[str, Any] = {"name": self.name}
        style = chosen.random()
        if style < 0.75:
            ending = chosen.choice(("", "", ".", f" with {' and '.join(field.words for field in self.fields)}."))
            stated["description"] = f"{verb.capitalize()} {chosen.choice(('a ', 'the ', ''))}{noun or 'it'}{ending}"
        properties: dict[str, Any] = {}
        is_described = chosen.random() < 0.3
        for field in self.fields:
            properties[field.name] = dict(field.schema)
            if is_described:
                properties[field.name]["description"] = f"The {field.words}"
        parameters: dict[str, Any] = {"properties": properties, "type": "object"}
        if chosen.random() < 0.7:
            parameters = {"type": "object", "properties": properties}
        if self.fields:
            parameters["required"] = list(properties)
        if chosen.random() < 0.15:
            parameters["additionalProperties"] = False
        stated["parameters"] = parameters
        return {"type": "function", "function": stated}

    def question(self, words: Words) -> str:
        """Return a question that states the arguments."""
        chosen = words.chosen
        verb, noun = self.verb.replace("_", " "), self.noun.replace("_", " ")
        act = f"{verb} {chosen.choice(('the ', 'a ', ''))}{noun}" if noun else verb
        Act = act[0].upper() + act[1:]
        said = [field.said(chosen) for field in self.fields]
        values = ", ".join(said)
        separator = chosen.choice((" ", " ", " ", " is ", " = ", ": ", " set to "))
        pairs = [f"{field.words}{separator}{value}" for field, value in zip(self.fields, said, strict=True)]
        of_code = [f"{field.name}={value}" for field, value in zip(self.fields, said, strict=True)]
        listed = pairs[0] if len(pairs) == 1 else f"{', '.join(pairs[:-1])} and {pairs[-1]}" if pairs else ""
        if not self.fields:
            return chosen.choice(
                (
                    f"{Act}.",
                    f"What is the value of {self.name}()? Use the tool.",
                    f"Call {self.name}.",
                    f"Please {act}.",
                )
            )
        patterns = [
            f"{Act} with {listed}.",
            f"{Act} with {listed}",
            f"{Act}, {listed}.",
            f"{Act}: {', '.join(pairs)}",
            f"Please {act} with {listed}.",
            f"Can you {act} with {listed}?",
            f"I want to {act} with {listed}.",
            f"I need you to {act}. The {' and the '.join(pairs)}.",
            f"Call {self.name} with {listed}.",
            f"Use {self.name} with {listed}.",
            f"Use the tool {self.name}: {', '.join(pairs)}.",
            f"Call {self.name}({', '.join(of_code)}).",
            f"What is the value of {self.name}({values})? Use the tool.",
            f"What does {self.name} return for {listed}?",
        ]
        if len(self.fields) == 1:
            value = said[0]
            patterns += [
                f"{Act} {chosen.choice(('for', 'in', 'of', 'at', 'named', 'called', 'about', 'to'))} {value}.",
                f"{Act} {value}",
                f"{Act} '{self.fields[0].value}' ({words.name()} {words.name()}) - a {words.word()} {noun or 'one'}",
                f"What is the {noun or self.fields[0].words} in {value}?",
                f"What is the {noun or self.fields[0].words} of {value}?",
                f"How is the {noun or self.fields[0].words} in {value}?",
            ]
        return chosen.choice(patterns)


def draw_function(words: Words, num_arguments: int | None = None) -> Function:
    """Return a function, with no arguments to `MOST_ARGUMENTS` unless it is said how many."""
    chosen = words.chosen
    count = chosen.choices(range(MOST_ARGUMENTS + 1), (1, 8, 6, 4))[0] if num_arguments is None else num_arguments
    fields: list[Field] = []
    for _ in range(count):
        fields.append(draw_field(words, [field.name for field in fields], with_lists=True))
    verb = words.of(VERBS) if chosen.random() < 0.8 else words.made_up()
    noun = words.of(NOUNS) if chosen.random() < 0.75 else words.made_up()
    if chosen.random() < 0.2:
        noun = f"{words.word()}_{noun}"
    return Function(verb, "" if chosen.random() < 0.04 else noun, tuple(fields))


def draw_call(rng: random.Random) -> Conversation:
    """Return questions for some of several tools, with calls, and some of their results."""
    words = Words(rng)
    functions = [draw_function(words) for _ in range(rng.choice((1, 1, 2, MOST_TOOLS)))]
    tools = tuple(function.tool(rng) for function in functions)
    messages = [system(rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.15 else []
    for turn in range(rng.randint(1, MOST_TURNS)):
        function = rng.choice(functions)
        if turn:
            fields = tuple(_again(field, words) for field in function.fields)
            function = Function(function.verb, function.noun, fields)
        messages += [user(function.question(words)), function.call]
        if turn or rng.random() < 0.5:
            messages += _result(words)
    if messages[-1]["role"] == "assistant" and rng.random() < 0.2:
        question, answer = rng.choice(THANKS)
        messages += [user(question), assistant(answer)]
    return Conversation(tuple(messages), tools)


THANKS = (
    ("Thanks!", "You are welcome!"),
    ("Thank you.", "You are welcome!"),
)


def _again(field: Field, words: Words) -> Field:
    """Return a field with another value."""
    schema = field.schema
    if "enum" in schema:
        return Field(field.name, schema, words.chosen.choice(schema["enum"]))
    kind = schema["type"]
    values = {"string": words.text, "integer": words.integer, "number": words.number}
    if kind == "array":
        return Field(field.name, schema, [words.word() for _ in range(words.chosen.randint(2, 3))])
    value = words.chosen.random() < 0.5 if kind == "boolean" else values[kind]()
    return Field(field.name, schema, value)


def _result(words: Words) -> list[Message]:
    """Return the result of a call, and a sentence that says it."""
    chosen = words.chosen
    if chosen.random() < 0.4:
        said = str(chosen.choice((words.integer, words.text, words.phrase))())
        if chosen.random() < 0.3:
            said = f"It's {said}."
            return [{"role": "tool", "content": said}, assistant(said)]
        return [{"role": "tool", "content": said}, assistant(f"The result is {said}.")]
    fields: list[Field] = []
    for _ in range(chosen.randint(1, 3)):
        fields.append(draw_field(words, [field.name for field in fields]))
    result = json.dumps({field.name: field.value for field in fields}, ensure_ascii=False)
    said = [f"the {field.words} is {_plain(field.value)}" for field in fields]
    sentence = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    return [{"role": "tool", "content": result}, assistant(f"{sentence[0].upper()}{sentence[1:]}.")]


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
