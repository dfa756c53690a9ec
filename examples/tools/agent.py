# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["openai-agents==0.24.0"]
# ///
"""An agent of OpenAI's Agents SDK: its first step calls a tool, its second says in words what the tool returned.

uv run --locked --script examples/tools/agent.py http://localhost:8080 NAME "What time is it in Tokyo?"
"""

import asyncio
import json
import os
import sys

import agents
from openai import AsyncOpenAI

NUM_STEPS = 2


@agents.function_tool
def get_time(city: str) -> str:
    """Get the current time in a city."""
    return json.dumps({"time": f"{10 + len(city) % 12}:15"})  # a stand-in for a clock


async def answer(url: str, model: str, question: str) -> None:
    """Print each step of the agent.

    Raises:
        MaxTurnsExceeded: The model still calls after `NUM_STEPS` steps.
    """
    agents.set_tracing_disabled(True)  # it would be sent to OpenAI
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"))
    clock = agents.Agent(
        name="clock",
        model=agents.OpenAIChatCompletionsModel(model, client),
        model_settings=agents.ModelSettings(temperature=0),
        tools=[get_time],
    )
    print(f"> {question}")
    result = await agents.Runner.run(clock, question, max_turns=NUM_STEPS)
    for item in result.new_items:
        match item:
            case agents.ToolCallItem(raw_item=call):
                print(f"  calls {call.name}({call.arguments})")
            case agents.ToolCallOutputItem(output=output):
                print(f"  gets {output}")
            case agents.MessageOutputItem():
                print(f"  {agents.ItemHelpers.text_message_output(item)}")


if __name__ == "__main__":
    asyncio.run(answer(*sys.argv[1:]))
