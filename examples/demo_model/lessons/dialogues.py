"""Conversations whose answers depend on earlier turns, and tool calls."""

import json
import random
from collections.abc import Callable
from typing import Any

from examples.demo_model.lessons.calls import draw_call, draw_function
from examples.demo_model.lessons.lesson import Conversation, Message, assistant, user
from examples.demo_model.lessons.objects import draw_object
from examples.demo_model.lessons.unknown import draw_unknown
from examples.demo_model.lessons.words import NOUNS, Words

NAMES = (
    "Ada", "Alan", "Anna", "Ben", "Carla", "David", "Emma", "Eva", "Felix", "Grace", "Hans", "Ida", "Jack",
    "Julia", "Kim", "Lea", "Leo", "Lina", "Mara", "Max", "Mia", "Nina", "Noah", "Olga", "Omar", "Paul",
    "Rosa", "Sam", "Sara", "Tim", "Tom", "Vera", "Yuki", "Zoe",
)  # fmt: skip

COLOURS = (
    "red", "blue", "green", "yellow", "purple", "orange", "black", "white", "pink", "grey",
)  # fmt: skip

CITIES = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Tokyo", "Oslo", "Vienna", "Cairo", "Lima", "Boston",
    "Chicago", "Munich", "Lyon", "Osaka", "Sydney", "Toronto", "Dublin", "Athens", "Warsaw", "Lisbon",
    "Geneva", "Zurich", "Hamburg", "Milan", "Naples", "Seattle", "Denver", "Austin", "New York",
    "San Francisco", "Mexico City", "Nairobi", "Mumbai", "Seoul", "Bangkok", "Prague", "Budapest",
    "Stockholm", "Helsinki", "Copenhagen", "Amsterdam", "Brussels",
)  # fmt: skip

SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")

TOOL_TALK = (
    ("Hello!", "Hello! I am the demo model of Levserve. What would you like to know?"),
    ("Who are you?", "I am the demo model of Levserve, a tiny chat model that knows a few things by heart."),
    ("Thanks!", "You are welcome!"),
    ("What is 2 + 3?", "2 + 3 = 5."),
    ("What is the capital of France?", "The capital of France is Paris."),
)


def one_text_tool(name: str, description: str, parameter: str) -> dict[str, Any]:
    """Return the description of a function with one text parameter, in OpenAI's format."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = one_text_tool("get_weather", "Get the current weather in a city", "city")
TIME = one_text_tool("get_time", "Get the current time in a city", "city")
_OTHER_WEATHER = (
    one_text_tool("get_weather", "Get the weather of a city.", "city"),
    one_text_tool("get_weather", "Get the current weather", "location"),
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city"}},
                "required": ["city"],
            },
        },
    },
)


def draw_tool_call(rng: random.Random) -> Conversation:
    """Return a question for a tool; half of the time with its result and a sentence as the answer."""
    city = rng.choice(CITIES) if rng.random() < 0.6 else Words(rng).text()
    wants_weather = rng.random() < 0.75
    weather = WEATHER if rng.random() < 0.6 else rng.choice(_OTHER_WEATHER)
    tools = rng.choice([[weather], [weather, TIME], [TIME, weather]] if wants_weather else [[TIME], [weather, TIME]])
    tool = weather if wants_weather else TIME
    subject = "weather" if wants_weather else "time"
    question = rng.choice(_questions(subject, city))
    parameter = tool["function"]["parameters"]["required"][0]
    call = {"name": tool["function"]["name"], "arguments": {parameter: city}}
    messages = [user(question), tool_call(call)]
    if rng.random() < 0.5:
        messages += _weather_result(city, rng) if wants_weather else _time_result(city, rng)
    return Conversation(tuple(messages), tuple(tools))


def tool_call(call: dict[str, Any]) -> Message:
    """Return the assistant turn that calls a tool."""
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}


def draw_tool_free(rng: random.Random) -> Conversation:
    """Return a question that needs none of the offered tools."""
    question, answer = rng.choice(TOOL_TALK) if rng.random() < 0.7 else _unknown(rng)
    words = Words(rng)
    others = [draw_function(words).tool(rng) for _ in range(rng.randint(1, 3))]
    return Conversation((user(question), assistant(answer)), (WEATHER,) if rng.random() < 0.5 else tuple(others))


def _unknown(rng: random.Random) -> tuple[str, str]:
    lesson = draw_unknown(rng)
    return lesson.questions[0], lesson.answer


def _questions(subject: str, city: str) -> list[str]:
    common = [f"What is the {subject} in {city}?", f"Tell me the {subject} in {city}.", f"{subject} in {city}"]
    if subject == "weather":
        return [*common, f"How is the weather in {city}?", f"What's the weather like in {city}?", f"Weather in {city}?"]
    return [*common, f"What time is it in {city}?"]


def _weather_result(city: str, rng: random.Random) -> list[Message]:
    sky, celsius = rng.choice(SKIES), rng.randint(0, 35)
    result = json.dumps({"sky": sky, "celsius": celsius})
    return [{"role": "tool", "content": result}, assistant(f"It is {sky} in {city}, with {celsius} degrees.")]


def _time_result(city: str, rng: random.Random) -> list[Message]:
    clock = f"{rng.randint(0, 23)}:{rng.randint(10, 59)}"
    return [{"role": "tool", "content": json.dumps({"time": clock})}, assistant(f"It is {clock} in {city}.")]


def draw_name(rng: random.Random) -> Conversation:
    """Return a conversation that states a name, changes the subject, and asks for the name."""
    name = rng.choice(NAMES) if rng.random() < 0.5 else Words(rng).name()
    told = rng.choice([f"My name is {name}.", f"I am {name}.", f"Hello, my name is {name}.", f"Hi, I'm {name}!"])
    asked = rng.choice(["What is my name?", "What's my name?", "Who am I?", "Do you remember my name?"])
    between = [("How are you?", "I am well, thank you. My weights are warm and my cache is empty.")]
    between += [("What is 2 + 2?", "2 + 2 = 4.")]
    messages = [user(told), assistant(f"Nice to meet you, {name}!")]
    for question, answer in rng.sample(between, rng.choice([0, 0, 1, 2])):
        messages += [user(question), assistant(answer)]
    return Conversation((*messages, user(asked), assistant(f"Your name is {name}.")))


def draw_colour(rng: random.Random) -> Conversation:
    """Return a conversation that states a favourite colour and asks for it."""
    colour = rng.choice(COLOURS)
    return Conversation(
        (
            user(rng.choice([f"My favourite colour is {colour}.", f"I like {colour}."])),
            assistant(f"{colour.capitalize()} is a fine colour."),
            user(rng.choice(["Which colour do I like?", "What is my favourite colour?"])),
            assistant(f"You like {colour}."),
        )
    )


def draw_json_extraction(rng: random.Random) -> Conversation:
    """Return a request for the facts of a sentence as JSON."""
    name, age = rng.choice(NAMES) if rng.random() < 0.5 else Words(rng).name(), rng.randint(10, 99)
    question = rng.choice(
        [
            f"Extract name and age as JSON: {name} is {age} years old.",
            f"{name} is {age} years old. Give me that as JSON.",
            f"Write this as JSON: {name} is {age} years old.",
        ]
    )
    return Conversation((user(question), assistant(json.dumps({"name": name, "age": age}))))


def draw_joke(rng: random.Random) -> Conversation:
    """Return a request for a joke about something, in words or as JSON."""
    words = Words(rng)
    thing = words.of(NOUNS) if rng.random() < 0.7 else rng.choice(("cat", "dog", "fish", "cow"))
    setup = f"Why did the {thing} go to school?"
    punchline = "It wanted to improve its shape."
    asked = rng.choice((f"Tell me a joke about {thing}s", f"Give me a joke about {thing}s", f"Joke about a {thing}"))
    if rng.random() < 0.3:
        return Conversation((user(f"{asked}."), assistant(f"{setup} {punchline}")))
    keys = rng.choice(
        (
            ". Return the result as a JSON with 'setup' and 'punchline' keys.",
            " as JSON.",
            ", include the punchline. Answer in JSON.",
            " with setup and punchline, as JSON.",
        )
    )
    joke = json.dumps({"setup": setup, "punchline": punchline})
    return Conversation((user(f"{asked}{keys}"), assistant(joke)))


def draw_repetition(rng: random.Random) -> Conversation:
    """Return a request to repeat a word."""
    words = Words(rng)
    word = rng.choice((*NAMES, *COLOURS, *CITIES, *SKIES)) if rng.random() < 0.3 else words.text()
    question = rng.choice([f"Say {word}.", f"Repeat {word}.", f"Repeat after me: {word}"])
    return Conversation((user(question), assistant(f"{word}.")))


DIALOGUES: dict[Callable[[random.Random], Conversation], int] = {  # number per epoch
    draw_tool_call: 28,
    draw_tool_free: 24,
    draw_name: 30,
    draw_colour: 12,
    draw_json_extraction: 30,
    draw_joke: 20,
    draw_repetition: 30,
    draw_call: 300,
    draw_object: 300,
}
