"""The fields of the bodies of Ollama's routes."""

from service.api.schema import chat, ollama
from tests.api.schema.other_requests import VECTORS
from tests.api.schema.parts_of_requests import PARTS
from tests.api.schema.values import (
    FLAG,
    LONG_NAME,
    MAYBE,
    REQUIRED,
    ROLE,
    Field,
    Values,
    field,
    list_of,
    nested,
    text,
)

NUMBER = Values((0.5, -1, 100), ("1", True, [1]))
WHOLE = Values((1, -1, 100), ("1", 1.5, True, [1]))
CALL = {"function": {"name": "f", "arguments": "{}"}}
SHARED = {
    "model": field(REQUIRED, LONG_NAME),
    "stream": field(True, FLAG),
    "format": field("", Values(("", "json", {"type": "object"}), ("xml", 7, []))),
    "options": field(None, nested({"seed": 1})),
    "think": field(None, Values((True, False, "low"), (7, []))),
    "logprobs": field(False, FLAG),
    "top_logprobs": field(0, WHOLE),
}

# Of each kind of object its least one, and its fields.
OLLAMA_REQUESTS: dict[type, tuple[dict[str, object], dict[str, Field]]] = {
    ollama.OllamaOptions: (
        {},
        {
            **{name: field(None, NUMBER) for name in ("temperature", "top_p", "min_p", "repeat_penalty")},
            **{name: field(None, NUMBER) for name in ("presence_penalty", "frequency_penalty")},
            **{name: field(None, WHOLE) for name in ("top_k", "seed", "num_predict")},
            "stop": field([], list_of(lambda index: "a", 7)),
        },
    ),
    ollama.OllamaFunctionCall: PARTS[chat.FunctionCall],
    ollama.OllamaToolCall: (CALL, {"id": field(None, MAYBE), "function": field(REQUIRED, nested(CALL["function"]))}),
    ollama.OllamaMessage: (
        {"role": "user"},
        {
            "role": field(REQUIRED, ROLE),
            "content": field("", text()),
            "tool_calls": field([], list_of(lambda index: CALL, 7)),
            **{name: field(None, text()) for name in ("thinking", "tool_name", "tool_call_id")},
        },
    ),
    ollama.OllamaChatRequest: (
        {"model": "m"},
        SHARED
        | {
            "messages": field([], list_of(lambda index: {"role": "user"}, 7)),
            "tools": field([], list_of(lambda index: {"function": {}}, 7, longest=128)),
        },
    ),
    ollama.OllamaGenerateRequest: (
        {"model": "m"},
        SHARED | {name: field("", text()) for name in ("prompt", "suffix", "system")} | {"raw": field(False, FLAG)},
    ),
    ollama.OllamaShowRequest: ({"model": "m"}, {"model": field(REQUIRED, LONG_NAME)}),
    ollama.OllamaEmbedRequest: ({"model": "m", "input": "hi"}, VECTORS | {"truncate": field(True, FLAG)}),
}
