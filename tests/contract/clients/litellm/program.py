# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["litellm==1.106.2", "mcp"]  # LiteLLM imports it for tools
# ///
"""LiteLLM, through every scenario; prints what it got as one line of JSON."""

import json
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a newer one

import litellm
import openai
from pydantic import BaseModel

GIVEN = json.loads(sys.argv[1])
MESSAGES = [{"role": "user", "content": GIVEN["question"]}]
litellm.suppress_debug_info = True


class Place(BaseModel):
    kind: Literal["city", "village"]
    population: Literal[1, 100]


def complete(messages=MESSAGES, **options):
    given = {"api_base": GIVEN["baseURL"], "api_key": GIVEN["apiKey"], "model": GIVEN["model"], "max_retries": 0}
    given |= options
    return litellm.completion(**given | {"model": f"openai/{given['model']}", "messages": messages})


def chat():
    answer = complete(temperature=0)
    [choice] = answer.choices
    tokens = answer.usage.completion_tokens
    return {"text": choice.message.content, "reason": choice.finish_reason, "tokens": tokens}


def stream():
    return {"pieces": [chunk.choices[0].delta.content or "" for chunk in complete(temperature=0, stream=True)]}


def tools():
    options = {"tools": [GIVEN["tool"]], "max_tokens": 200}
    chunks = list(complete(**options, tool_choice="required", parallel_tool_calls=False, stream=True))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": GIVEN["arrived"]}
    answer = complete([*MESSAGES, message.model_dump(), result], **options, tool_choice="none")
    arguments = json.loads(call.function.arguments)
    return {"name": call.function.name, "arguments": arguments, "text": answer.choices[0].message.content}


def structured():
    answer = complete(response_format=Place)
    return Place.model_validate_json(answer.choices[0].message.content).model_dump()


def abort():
    running = complete(stream=True, extra_body={"ignore_eos": True})
    pieces = [piece for piece, _ in zip(running, range(3), strict=False)]
    running.completion_stream.close()
    print("aborted", flush=True)
    input()
    return {"numPieces": len(pieces)}


def errors():
    found = {}
    cases = {"key": {"api_key": "wrong"}, "model": {"model": "other"}, "field": {"temperature": 9}}
    for name, changes in cases.items():
        try:
            complete(**changes)
        except openai.APIStatusError as error:
            param = error.param or (error.body or {}).get("param")
            found[name] = {"kind": type(error).__name__, "status": error.status_code, "param": param}
    return found


print(json.dumps({scenario.__name__: scenario() for scenario in (chat, stream, tools, structured, abort, errors)}))
