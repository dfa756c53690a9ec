# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["langchain-openai==1.7.3"]
# ///
"""LangChain's chat model, through every scenario; prints what it got as one line of JSON."""

import json
import sys
from typing import Literal

import openai
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

GIVEN = json.loads(sys.argv[1])
MESSAGES = [("user", GIVEN["question"])]


class Place(BaseModel):
    kind: Literal["city", "village"]
    population: Literal[1, 100]


def chat_model(**options):
    given = {"base_url": GIVEN["baseURL"], "api_key": GIVEN["apiKey"], "model": GIVEN["model"], "max_retries": 0}
    return ChatOpenAI(**given | options)


def chat():
    answer = chat_model(temperature=0).invoke(MESSAGES)
    reason, usage = answer.response_metadata["finish_reason"], answer.usage_metadata
    return {"text": answer.content, "reason": reason, "tokens": usage["output_tokens"]}


def stream():
    return {"pieces": [piece.content for piece in chat_model(temperature=0).stream(MESSAGES)]}


def tools():
    bound = chat_model(max_tokens=200)
    requiring = bound.bind_tools([GIVEN["tool"]], tool_choice="required", parallel_tool_calls=False)
    first, *rest = requiring.stream(MESSAGES)
    for piece in rest:
        first += piece
    [call] = first.tool_calls
    result = ToolMessage(GIVEN["arrived"], tool_call_id=call["id"])
    answer = bound.bind_tools([GIVEN["tool"]], tool_choice="none").invoke([*MESSAGES, first, result])
    return {"name": call["name"], "arguments": call["args"], "text": answer.content}


def structured():
    return chat_model().with_structured_output(Place).invoke(MESSAGES).model_dump()


def abort():
    running = chat_model(extra_body={"ignore_eos": True}).stream(MESSAGES)
    pieces = [piece for piece, _ in zip(running, range(3), strict=False)]
    running.close()
    print("aborted", flush=True)
    input()
    return {"numPieces": len(pieces)}


def errors():
    found = {}
    cases = {"key": {"api_key": "wrong"}, "model": {"model": "other"}, "field": {"temperature": 9}}
    for name, changes in cases.items():
        try:
            chat_model(**changes).invoke(MESSAGES)
        except openai.APIStatusError as error:
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("openai"))
            found[name] = {"kind": kind, "status": error.status_code, "param": error.param}
    return found


print(json.dumps({scenario.__name__: scenario() for scenario in (chat, stream, tools, structured, abort, errors)}))
