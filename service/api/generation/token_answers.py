"""The answers of POST /tokenize, POST /detokenize and POST /v1/messages/count_tokens, as JSON.

A body may have a million tokens, so all of an answer is made off the event loop.
"""

from collections.abc import Sequence

from pydantic_core import to_json

from service.api.conversation import unknown_token
from service.api.generation.chat_prompt import Conversational, conversation_of, rendered
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.text.prompt_model import PromptModel


def token_answer(
    body: TokenizeRequest, model: PromptModel, *, key: bytes = b"", images: Sequence[str] | None = None
) -> bytes:
    """Return the token ids of a prompt or a chat, whose images are as in `rendered`; raises as `rendered`, `encode`."""
    token_ids = _token_ids(body, model, key, images)
    name_of = model.tokenizer.backend.id_to_token
    names = [name_of(token_id) for token_id in token_ids] if body.return_token_strs else None
    answer = {"count": len(token_ids), "max_model_len": model.max_model_len, "tokens": token_ids, "token_strs": names}
    # A tenth of the time of Python's own, which holds the interpreter too.
    return to_json(answer)


def count_tokens(body: Conversational, model: PromptModel, *, key: bytes, images: Sequence[str] | None = None) -> bytes:
    """Return the number of tokens of the prompt that Anthropic's Messages make; raises as `token_answer`."""
    conversation = conversation_of(body, key)
    text = rendered(conversation, model, images).text
    return to_json({"input_tokens": len(model.tokenizer.encode(text, add_special_tokens=False, param=conversation.at))})


def text_answer(body: DetokenizeRequest, model: PromptModel) -> bytes:
    """Return the text of token ids; raises InvalidParameter for one that is not the model's."""
    for index, token_id in enumerate(body.tokens):
        if token_id >= model.vocab_size:
            raise unknown_token(f"tokens[{index}]", token_id, model.vocab_size)
    return to_json({"prompt": model.tokenizer.backend.decode(body.tokens, skip_special_tokens=False)})


def _token_ids(body: TokenizeRequest, model: PromptModel, key: bytes, images: Sequence[str] | None) -> list[int]:
    if body.messages is not None:
        # A template writes the special tokens itself.
        adds_special_tokens = bool(body.add_special_tokens)
        return model.tokenizer.encode(
            rendered(conversation_of(body, key), model, images).text,
            add_special_tokens=adds_special_tokens,
            param="messages",
        )
    assert body.prompt is not None, "a request has a prompt or messages"
    return model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
