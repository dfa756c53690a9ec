"""Chats as clients send them make the prompts of transformers' apply_chat_template, with every feature of templates."""

import json
from pathlib import Path

import pytest

from service.api.generation.chat_prompt import conversation_of, rendered
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.wire import parse
from service.errors import InvalidParameter, UnsupportedParameter
from service.text.chat_template import ChatTemplate
from service.text.prompt_model import PromptModel
from tests.api.scripted_engine import TOKENIZER
from tests.text.template_cases import CASES, TEMPLATES, TOKENS, Case

REFERENCES = json.loads((Path(__file__).parents[2] / "text" / "references" / "templates.json").read_text())


def prompt_of(template, case: Case):
    named = {"default": template} if isinstance(template, str) else template
    variants = {name: ChatTemplate(source, TOKENS) for name, source in named.items() if name != "default"}
    compiled = ChatTemplate(named["default"], TOKENS, variants=variants)
    model = PromptModel(
        name="m", tokenizer=TOKENIZER, chat_template=compiled, max_model_len=4096, vocab_size=TOKENIZER.vocab_size
    )
    body = {
        "model": "m", "messages": case.messages, "tools": case.tools, "documents": case.documents,
        "continue_final_message": case.continues, "add_generation_prompt": not case.continues,
        "chat_template_kwargs": dict(case.variables),
    }  # fmt: skip
    chat = parse(ChatCompletionRequest, json.dumps(body).encode())
    return rendered(conversation_of(chat, b""), model).text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_makes_the_prompt_of_transformers(template, case):
    expected = REFERENCES[template][case]
    if expected is not None:
        assert prompt_of(TEMPLATES[template], CASES[case]) == expected
        return
    with pytest.raises((InvalidParameter, UnsupportedParameter)):
        prompt_of(TEMPLATES[template], CASES[case])
