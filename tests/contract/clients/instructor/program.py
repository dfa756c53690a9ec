# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["instructor==1.17.0"]
# ///
"""Instructor over the official client, through every scenario; prints what it got as one line of JSON."""

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

GIVEN = json.loads(sys.argv[1])
MESSAGES = [{"role": "user", "content": GIVEN["question"]}]


class Place(BaseModel):
    """A place."""

    model_config = ConfigDict(extra="forbid")  # Instructor does not ask for strict schemas

    kind: Literal["city", "village"]
    population: Literal[1, 100]


def completions(mode=instructor.Mode.TOOLS, **changes):
    options = {"base_url": GIVEN["baseURL"], "api_key": GIVEN["apiKey"], "max_retries": 0}
    return instructor.from_openai(openai.OpenAI(**options | changes), mode=mode).chat.completions


def complete(client=None, **options):
    given = {"model": GIVEN["model"], "messages": MESSAGES, "response_model": None, "max_retries": 0}
    return (client or completions()).create(**given | options)


def chat():
    answer = complete(temperature=0)
    [choice] = answer.choices
    tokens = answer.usage.completion_tokens
    return {"text": choice.message.content, "reason": choice.finish_reason, "tokens": tokens}


def stream():
    return {"pieces": [chunk.choices[0].delta.content or "" for chunk in complete(temperature=0, stream=True)]}


def tools():
    options = {"tools": [GIVEN["tool"]], "max_tokens": 200}
    message = complete(**options, tool_choice="required", parallel_tool_calls=False).choices[0].message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": GIVEN["arrived"]}
    answer = complete(
        messages=[*MESSAGES, message.model_dump(exclude_unset=True), result], **options, tool_choice="none"
    )
    arguments = json.loads(call.function.arguments)
    return {"name": call.function.name, "arguments": arguments, "text": answer.choices[0].message.content}


def structured():
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT)
    found = [complete(completions(mode), response_model=Place).model_dump() for mode in modes]
    *_, last = completions().create_partial(model=GIVEN["model"], messages=MESSAGES, response_model=Place)
    return max([*found, last.model_dump()], key=len)


def abort():
    running = complete(stream=True, extra_body={"ignore_eos": True})
    pieces = [piece for piece, _ in zip(running, range(3), strict=False)]
    running.close()
    print("aborted", flush=True)
    input()
    return {"numPieces": len(pieces)}


def errors():
    found = {}
    cases = {"key": ({"api_key": "wrong"}, {}), "model": ({}, {"model": "other"}), "field": ({}, {"temperature": 9})}
    for name, (of_client, of_request) in cases.items():
        try:
            complete(completions(**of_client), **of_request)
        except openai.APIStatusError as error:
            found[name] = {"kind": type(error).__name__, "status": error.status_code, "param": error.param}
    return found


print(json.dumps({scenario.__name__: scenario() for scenario in (chat, stream, tools, structured, abort, errors)}))
