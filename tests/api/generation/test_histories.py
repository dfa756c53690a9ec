"""What clients of each interface give back of a chat with tools makes the prompt that transformers makes of it."""

import gzip
import json
from collections import Counter
from functools import cache, partial
from itertools import product
from pathlib import Path

import pytest

from service.api.generation.chat_prompt import chat_prompt
from service.api.generation.sealed import seal, sign
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.messages import MessagesRequest
from service.api.schema.ollama import OllamaChatRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.wire import parse
from service.errors import InvalidParameter
from service.text.chat_template import ChatTemplate
from service.text.formats.families import FAMILIES
from service.text.prompt_model import PromptModel
from service.text.tokenizer import Tokenizer
from tests.text.formats import histories
from tests.text.formats.histories import CONVERSATIONS, with_ids
from tests.text.formats.templates import TEMPLATES
from tests.text.small_tokenizers import byte_level

FILE = Path(__file__).parents[2] / "text" / "references" / "histories.json.gz"
REFERENCES = json.loads(gzip.decompress(FILE.read_bytes()))
KEY = b"key"
WAYS = {
    "chat": (ChatCompletionRequest, histories.chat_body),
    "chat, objects": (ChatCompletionRequest, histories.chat_body_with_objects),
    "chat, parts": (ChatCompletionRequest, histories.chat_body_with_parts),
    "Responses": (ResponsesRequest, partial(histories.responses_body, seal=partial(seal, key=KEY))),
    "Messages": (MessagesRequest, partial(histories.messages_body, sign=partial(sign, key=KEY))),
    "Ollama": (OllamaChatRequest, histories.ollama_body),
}


@cache
def model_of(checkpoint):
    source, name, _ = TEMPLATES[checkpoint]
    backend = byte_level(600)
    backend.add_special_tokens([mark for form in FAMILIES if form.name == name for mark in form.marks])
    tokenizer = Tokenizer(backend)
    template = ChatTemplate(source, {})
    return PromptModel(
        name="m", tokenizer=tokenizer, chat_template=template, max_model_len=8192, vocab_size=tokenizer.vocab_size
    )


def ids_of(checkpoint, way, conversation):
    kind, body = WAYS[way]
    chat = parse(kind, json.dumps({"model": "m"} | body(conversation)).encode())
    return list(chat_prompt(chat, model_of(checkpoint), key=KEY).ids)


def check(checkpoint, way, name, conversation):
    tokenizer, expected = model_of(checkpoint).tokenizer, REFERENCES[checkpoint][name]
    if expected is None:
        with pytest.raises(InvalidParameter):
            ids_of(checkpoint, way, conversation)
        return
    ids = ids_of(checkpoint, way, conversation)
    assert ids == tokenizer.encode(expected, add_special_tokens=False), (
        way,
        name,
        tokenizer.backend.decode(ids, skip_special_tokens=False),
    )


@pytest.mark.parametrize("checkpoint", TEMPLATES)
def test_a_history_makes_the_prompt_of_transformers(checkpoint):
    for way, (name, conversation) in product(WAYS, CONVERSATIONS.items()):
        check(checkpoint, way, name, with_ids(conversation))


def test_a_family_that_numbers_its_calls_gets_its_own_ids_whatever_a_client_has_made_of_them():
    for way, (name, conversation) in product(WAYS, CONVERSATIONS.items()):
        check("Kimi-K2", way, name, with_ids(conversation, "toolu_{number}"))


def test_there_is_a_reference_of_each_conversation_but_where_a_template_takes_one_call():
    assert {name: list(prompts) for name, prompts in REFERENCES.items()} == {
        name: [*CONVERSATIONS] for name in TEMPLATES
    }
    refused = Counter(name for name, prompts in REFERENCES.items() for prompt in prompts.values() if prompt is None)
    assert refused == {"Llama-3.1": 5}
