"""Conversations with tools, and the bodies in which clients of each interface give them back."""

import json
import random

WEATHER = {
    "name": "get_weather",
    "description": "Now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
CLOCK = {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, CLOCK)]

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How is it in Zürich, and when?"}
NEXT = {"role": "user", "content": "And then?"}


def answer(content, *calls, reasoning=None):
    """Return an assistant's message; the calls are names with arguments."""
    functions = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    said = {} if reasoning is None else {"reasoning_content": reasoning}
    return {"role": "assistant", "content": content, **said, **({"tool_calls": functions} if calls else {})}


def result(name, content):
    return {"role": "tool", "content": content, "name": name}


ZURICH = ("get_weather", {"city": "Zürich", "days": 3})
ULM = ("get_weather", {"city": 'the "Ulm" <of> {it}'})
CONVERSATIONS = {
    "no tool was called": [SYSTEM, QUESTION, answer("It is fine.", reasoning="A guess."), NEXT],
    "a call": [QUESTION, answer("", ZURICH, reasoning="The tool knows."), result("get_weather", "warm")],
    "a call without reasoning": [QUESTION, answer("", ULM), result("get_weather", '{"t": -1}'), answer("Cold."), NEXT],
    "a preamble": [QUESTION, answer("I look.", ZURICH), result("get_weather", "warm"), answer("Warm."), NEXT],
    "a loop": [
        SYSTEM,
        QUESTION,
        answer("", ZURICH, reasoning="First the weather."),
        result("get_weather", "warm"),
        answer("", ("clock", {}), reasoning="Then the time."),
        result("clock", "noon"),
        answer("Warm at noon.", reasoning="Both are known."),
        NEXT,
        answer("", ULM, reasoning="Once more."),
        result("get_weather", "cold"),
    ],
    "parallel calls": [
        QUESTION,
        answer("", ZURICH, ("clock", {}), ULM, reasoning="All at once."),
        result("get_weather", "warm"),
        result("clock", "noon"),
        result("get_weather", "cold"),
        answer("Warm, then cold."),
        NEXT,
    ],
    "parallel calls behind a preamble": [
        SYSTEM,
        QUESTION,
        answer("I look.", ("clock", {}), ZURICH, reasoning="Both."),
        result("clock", "noon"),
        result("get_weather", "warm"),
    ],
}

WORDS = [
    "Ulm",
    'a "b"',
    "{c}",
    "<d>",
    "日本 🌍",
    "it's",
    "\\n",
    "\n",
    " ",
    "[e]",
    "5",
    "</think",
    "<tool_call>",
    "true",
]
VALUES = [7, -0.5, True, None, [], ["a", 2], {}, {"k": {"n": None}, "l": [1.5, "b"]}, ""]


def random_conversation(seed):
    """Return a conversation of three to nine turns with up to three calls a turn."""
    rng = random.Random(f"conversation {seed}")

    def text(most=4):
        return "".join(rng.choices(WORDS, k=rng.randint(1, most)))

    found = [SYSTEM] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        found.append({"role": "user", "content": f"Q{text()}"})
        for _ in range(rng.choice([0, 1, 1, 2])):
            values = ["Ulm", text(), *VALUES]
            calls = [
                (name, {key: rng.choice(values) for key in rng.sample(["city", "days", "to"], rng.randint(0, 3))})
                for name in rng.choices(["get_weather", "clock"], k=rng.choice([1, 1, 2, 3]))
            ]
            found.append(answer(rng.choice(["", "", f"P{text()}"]), *calls, reasoning=rng.choice([None, f"R{text()}"])))
            found += [result(name, f"T{text()}") for name, _ in calls]
        found.append(answer(f"A{text()}", reasoning=rng.choice([None, f"R{text()}"])))
    return found[:-1] if found[-2]["role"] == "tool" and rng.random() < 0.5 else [*found, NEXT]


CONVERSATIONS |= {f"random {seed}": random_conversation(seed) for seed in range(3)}


def with_ids(conversation, form="call{number:05}"):
    """Return a conversation whose calls have ids, which their results name."""
    found, waiting, number = [], [], 0
    for turn in conversation:
        calls = []
        for call in turn.get("tool_calls", ()):
            name = call["function"]["name"]
            calls.append({"id": form.format(name=name, number=number + 1, index=number), **call})
            waiting.append(calls[-1]["id"])
            number += 1
        own = {"tool_calls": calls} if calls else {"tool_call_id": waiting.pop(0)} if turn["role"] == "tool" else {}
        found.append(turn | own)
    return found


def with_one_call_a_message(conversation):
    """Return a conversation as Harmony's template takes it: each call with its result, and one text before the call."""
    found = []
    results = {turn["tool_call_id"]: turn for turn in conversation if turn["role"] == "tool"}
    for turn in conversation:
        calls = turn.get("tool_calls", [])
        if not calls:
            found += [turn] if turn["role"] != "tool" else []
            continue
        texts = [text for text in (turn.get("reasoning_content"), turn["content"]) if text]
        first = {"reasoning_content": "\n".join(texts)} if "reasoning_content" in turn else {"content": turn["content"]}
        for call in calls:
            found.append({"role": "assistant", "content": "", **first, "tool_calls": [call]})
            found += [results[call["id"]]] if call["id"] in results else []
            first = {}
    return found


def with_calls_as_text(conversation, before, behind, between, begin="", end=""):
    """Return a conversation for a template that writes no calls: they are behind the content."""
    found = []
    for turn in conversation:
        texts = [
            f'{begin}{{"name": "{function["name"]}", "arguments": {dumped(function["arguments"])}}}{end}'
            for function in (call["function"] for call in turn.get("tool_calls", ()))
        ]
        content = [text for text in (turn["content"], before + between.join(texts) + behind if texts else "") if text]
        others = {key: value for key, value in turn.items() if key != "tool_calls"}
        found.append(others | {"content": "\n\n".join(content)})
    return found


def dumped(value):
    return json.dumps(value, ensure_ascii=False)


def with_text_arguments(conversation):
    """Return a conversation whose arguments are texts, as in OpenAI's interface."""
    return [
        turn
        | (
            {
                "tool_calls": [
                    call | {"function": call["function"] | {"arguments": dumped(call["function"]["arguments"])}}
                    for call in turn["tool_calls"]
                ]
            }
            if "tool_calls" in turn
            else {}
        )
        for turn in conversation
    ]


# What a client sends of a conversation that has ids.


def chat_body(conversation):
    return {"messages": with_text_arguments(conversation), "tools": TOOLS}


def chat_body_with_objects(conversation):
    messages = [
        {("reasoning" if key == "reasoning_content" else key): value for key, value in turn.items()}
        for turn in conversation
    ]
    return {"messages": messages, "tools": TOOLS}


def chat_body_with_parts(conversation):
    """Return texts as parts, and no name of a result, as many clients."""
    messages = []
    for turn in with_text_arguments(conversation):
        others = {key: value for key, value in turn.items() if key != "name"}
        content = [{"type": "text", "text": turn["content"]}] if turn["content"] else None
        messages.append(others | {"content": content})
    return {"messages": messages, "tools": TOOLS}


def responses_body(conversation, seal):
    """Return the items of Responses; reasoning is open in one item and sealed in the next."""
    items, num_thoughts = [], 0
    for turn in with_text_arguments(conversation):
        if turn["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]})
            continue
        if (thought := turn.get("reasoning_content")) is not None:
            open_text = {"content": [{"type": "reasoning_text", "text": thought}]}
            stated = open_text if num_thoughts % 2 == 0 else {"encrypted_content": seal(thought)}
            items.append({"type": "reasoning", "summary": [], **stated})
            num_thoughts += 1
        if turn["content"]:
            kind = "output_text" if turn["role"] == "assistant" else "input_text"
            content = [{"type": kind, "text": turn["content"]}]
            items.append({"type": "message", "role": turn["role"], "content": content})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]} for call in turn.get("tool_calls", ())
        ]
    return {"input": items, "tools": [{"type": "function", **tool["function"]} for tool in TOOLS]}


def messages_body(conversation, sign):
    """Return the blocks of Messages; results that follow each other are one message of the user."""
    messages, system = [], {}
    for turn in conversation:
        if turn["role"] == "system":
            system = {"system": turn["content"]}
            continue
        blocks = []
        if (thought := turn.get("reasoning_content")) is not None:
            blocks.append({"type": "thinking", "thinking": thought, "signature": sign(thought)})
        if turn["role"] == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]})
        elif turn["content"]:
            blocks.append({"type": "text", "text": turn["content"]})
        for call in turn.get("tool_calls", ()):
            function = call["function"]
            blocks.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]}
            )
        role = "assistant" if turn["role"] == "assistant" else "user"
        if turn["role"] == "tool" and messages[-1]["role"] == "user":
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in (WEATHER, CLOCK)
    ]
    return {**system, "messages": messages, "tools": tools, "max_tokens": 9}


def ollama_body(conversation):
    """Return Ollama's messages, whose calls have no ids."""
    messages = []
    for turn in conversation:
        message = {"role": turn["role"], "content": turn["content"]}
        if "reasoning_content" in turn:
            message["thinking"] = turn["reasoning_content"]
        if "name" in turn:
            message["tool_name"] = turn["name"]
        if "tool_calls" in turn:
            message["tool_calls"] = [{"function": call["function"]} for call in turn["tool_calls"]]
        messages.append(message)
    return {"messages": messages, "tools": TOOLS}
