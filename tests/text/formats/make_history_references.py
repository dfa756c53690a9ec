"""Makes references/histories.json.gz: what transformers' apply_chat_template writes of histories.py's conversations.

Run `python tests/text/formats/make_history_references.py` with transformers 5.24; the tests do without it.
"""

import gzip
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import TokenizersBackend

sys.path.insert(0, str(Path(__file__).parent))
from histories import (
    CONVERSATIONS,
    TOOLS,
    with_calls_as_text,
    with_ids,
    with_one_call_a_message,
    with_text_arguments,
)
from templates import TEMPLATES


def taken(checkpoint, conversation):
    """Return the messages as the checkpoint's template takes them, and its variables."""
    chat = with_ids(conversation, *(["functions.{name}:{index}"] if checkpoint == "Kimi-K2" else []))
    if checkpoint == "gpt-oss":
        return with_one_call_a_message(chat), {}
    if checkpoint == "SmolLM3":
        chat = with_calls_as_text(chat, "", "", "\n", "<tool_call>\n", "\n</tool_call>")
        return chat, {"xml_tools": TOOLS}
    if checkpoint == "Phi-4-mini":
        system = chat[0] if chat[0]["role"] == "system" else {"role": "system", "content": ""}
        chat = with_calls_as_text(chat[chat[0] is system :], "<|tool_call|>[", "]<|/tool_call|>", ", ")
        tools = json.dumps([tool["function"] for tool in TOOLS], ensure_ascii=False)
        return [system | {"tools": tools}, *chat], {}
    return chat, {}


def written(checkpoint, conversation):
    """Return the prompt; None if the template refuses the chat."""
    tokenizer = TokenizersBackend(tokenizer_object=Tokenizer(models.BPE()), chat_template=TEMPLATES[checkpoint][0])
    chat, variables = taken(checkpoint, conversation)
    for messages in (chat, with_text_arguments(chat)):  # as text where a template joins arguments
        try:
            return tokenizer.apply_chat_template(
                messages, tools=TOOLS, add_generation_prompt=True, tokenize=False, **variables
            )
        except Exception as error:
            print(checkpoint, error)
    return None


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "references" / "histories.json.gz"
    found = {
        checkpoint: {name: written(checkpoint, conversation) for name, conversation in CONVERSATIONS.items()}
        for checkpoint in TEMPLATES
    }
    text = json.dumps(found, ensure_ascii=False, indent=1).encode()
    path.write_bytes(gzip.compress(text, mtime=0))
    print(sum(prompt is not None for prompts in found.values() for prompt in prompts.values()), "prompts")
