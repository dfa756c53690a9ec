"""A loop of tool calls: the model calls, the functions of this file answer, until the model answers in words."""

import json
from collections.abc import Callable, Iterator

from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

MAX_ROUNDS = 5
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def get_weather(city: str) -> dict[str, object]:
    """Return a stand-in for the answer of a weather service."""
    return {"sky": "sunny" if len(city) % 2 else "rainy", "celsius": 10 + len(city)}


def get_time(city: str) -> dict[str, object]:
    """Return a stand-in for the answer of a clock."""
    return {"time": f"{10 + len(city) % 12}:15"}


FUNCTIONS: dict[str, Callable[..., dict[str, object]]] = {"get_weather": get_weather, "get_time": get_time}
TOOLS: tuple[ChatCompletionFunctionToolParam, ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": CITY,
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "Get the current time in a city", "parameters": CITY},
    },
)


def ask(client: OpenAI, model: str, question: str) -> Iterator[str]:
    """Yield each call with its result, and the model's answer at the end.

    Raises:
        RuntimeError: The model still calls after `MAX_ROUNDS` rounds.
    """
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for _ in range(MAX_ROUNDS):
        reply = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0)
        message = reply.choices[0].message
        if not message.tool_calls:
            yield message.content or ""
            return
        messages.append(message.to_dict())  # pyright: ignore[reportArgumentType]
        for call in message.tool_calls:
            assert call.type == "function"
            # The service holds name and arguments to the tools, so that they need no check here.
            result = json.dumps(FUNCTIONS[call.function.name](**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            yield f"{call.function.name}({call.function.arguments}) = {result}"
    raise RuntimeError(f"the model still calls after {MAX_ROUNDS} rounds")
