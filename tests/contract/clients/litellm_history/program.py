# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["litellm==1.106.2", "mcp"]  # LiteLLM imports it for tools
# ///
"""LiteLLM sends its messages back in every form; prints the tokens of each prompt as one line of JSON."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a newer one

import litellm

GIVEN = json.loads(sys.argv[1])
QUESTION = {"role": "user", "content": GIVEN["question"]}
litellm.suppress_debug_info = True


def complete(provider, messages, **options):
    account = {"api_base": GIVEN["baseURL"], "api_key": GIVEN["apiKey"], "max_retries": 0}
    model = f"{provider}/{GIVEN['model']}"
    return litellm.completion(model=model, messages=messages, tools=[GIVEN["tool"]], **account, **options)


def streamed(provider):
    chunks = list(complete(provider, [QUESTION], stream=True))
    return litellm.stream_chunk_builder(chunks).choices[0].message


def tokens_of(provider, message, call_id):
    result = {"role": "tool", "tool_call_id": call_id, "content": GIVEN["arrived"]}
    return complete(provider, [QUESTION, message, result]).usage.prompt_tokens


found = {}
for provider in ("openai", "hosted_vllm"):
    for way, message in {
        "whole": complete(provider, [QUESTION]).choices[0].message,
        "streamed": streamed(provider),
    }.items():
        [call] = message.tool_calls
        function = {"name": call.function.name, "arguments": call.function.arguments}
        plain_call = {"id": call.id, "type": "function", "function": function}
        forms = {
            "plain": {"role": "assistant", "content": None, "tool_calls": [plain_call]},
            "object": message,
            "model_dump": message.model_dump(),
            "model_dump without nulls": message.model_dump(exclude_none=True),
            "json": message.json(),
        }
        for form, sent in forms.items():
            found[f"{provider} {way} {form}"] = tokens_of(provider, sent, call.id)
print(json.dumps(found))
