# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["openai-agents==0.24.0"]
# ///
"""OpenAI's Agents SDK over chats or responses, through every scenario; prints what it got as one line of JSON."""

import asyncio
import json
import sys
from typing import Literal

import agents
import openai
from pydantic import BaseModel

GIVEN = json.loads(sys.argv[1])
agents.set_tracing_disabled(True)  # it would be sent to OpenAI


class Place(BaseModel):
    kind: Literal["city", "village"]
    population: Literal[1, 100]


def agent_of(*, key=GIVEN["apiKey"], model=GIVEN["model"], output_type=None, tools=(), **settings):
    client = openai.AsyncOpenAI(base_url=GIVEN["baseURL"], api_key=key, max_retries=0)
    kinds = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    return agents.Agent(
        name="demo",
        model=kinds[GIVEN["variant"]](model=model, openai_client=client),
        model_settings=agents.ModelSettings(**settings),
        output_type=output_type,
        tools=list(tools),
    )


async def chat():
    result = await agents.Runner.run(agent_of(temperature=0), GIVEN["question"])
    tokens = result.context_wrapper.usage.output_tokens
    return {"text": result.final_output, "reason": "stop", "tokens": tokens}


async def stream():
    return {
        "pieces": [
            piece async for piece in pieces_of(agents.Runner.run_streamed(agent_of(temperature=0), GIVEN["question"]))
        ]
    }


async def pieces_of(running):
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


async def tools():
    seen = []

    async def answer(_context, arguments):
        seen.append(json.loads(arguments))
        return GIVEN["arrived"]

    function = GIVEN["tool"]["function"]
    tool = agents.FunctionTool(function["name"], "The weather.", function["parameters"], answer)
    agent = agent_of(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    result = agents.Runner.run_streamed(agent, GIVEN["question"])
    async for _ in result.stream_events():
        pass
    return {"name": function["name"], "arguments": seen[0], "text": result.final_output}


async def structured():
    return (await agents.Runner.run(agent_of(output_type=Place), GIVEN["question"])).final_output.model_dump()


async def abort():
    endless = {"ignore_eos": True} if GIVEN["variant"] == "chat" else {}
    running = agents.Runner.run_streamed(agent_of(extra_body=endless), GIVEN["longQuestion"])
    num_pieces = 0
    async for _ in pieces_of(running):
        num_pieces += 1
        if num_pieces == 3:
            break
    running.cancel()
    await asyncio.sleep(0)
    print("aborted", flush=True)
    await asyncio.to_thread(input)
    return {"numPieces": num_pieces}


async def errors():
    found = {}
    for name, changes in {"key": {"key": "wrong"}, "model": {"model": "other"}, "field": {"temperature": 9}}.items():
        try:
            await agents.Runner.run(agent_of(**changes), GIVEN["question"])
        except openai.APIStatusError as error:
            found[name] = {"kind": type(error).__name__, "status": error.status_code, "param": error.param}
    return found


async def main():
    return {scenario.__name__: await scenario() for scenario in (chat, stream, tools, structured, abort, errors)}


print(json.dumps(asyncio.run(main())))
