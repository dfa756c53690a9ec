"""POST /tokenize, POST /detokenize, GET /tokenizer_info and GET /version, as vLLM has them.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json

from service.api.chat import render
from service.api.dependencies import Arrival, ServedModel, arrival, generating
from service.api.http.receive import json_body
from service.api.schema.generation import unknown_token
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.api.served import Served

router = APIRouter()


@router.post("/tokenize")
async def tokenize(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))],
) -> Response:
    """Return the token ids that a prompt or a chat has; it may be longer than the context."""
    context = await arrived.any_context(body.model)
    return await context.run_in_thread(lambda: _tokens(body, context.model))


@router.post("/detokenize")
async def detokenize(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))],
) -> Response:
    """Return the text of token ids, special tokens included."""
    context = await arrived.any_context(body.model)
    return await context.run_in_thread(lambda: _text(body, context.model))


@router.get("/tokenizer_info")
async def describe_tokenizer(request: Request, arrived: Annotated[Arrival, Depends(arrival)]) -> Response:
    """Return what prompts are made with: the special tokens, by transformers' names, and the chat template.

    Deviations: `?model=` names the model; it is needed only where there are several.
    """
    model = (await arrived.any_context(request.query_params.get("model"))).model
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    chat_template = model.chat_template if isinstance(model, ServedModel) else None
    template = None if chat_template is None else chat_template.source
    return JSONResponse(
        {**names, **model.tokenizer.special_tokens, "chat_template": template, "model_max_length": model.max_model_len}
    )


@router.get("/version")
async def show_version() -> Response:
    """Return the version of Levserve."""
    return JSONResponse({"version": installed_version()})


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("levserve")
    except PackageNotFoundError:  # it runs from its source
        return "not installed"


# A body may have a million tokens, so all of an answer, its JSON included, is made off the event loop.
def _tokens(body: TokenizeRequest, model: Served) -> Response:
    token_ids = _token_ids(body, model)
    name_of = model.tokenizer.backend.id_to_token
    names = [name_of(token_id) for token_id in token_ids] if body.return_token_strs else None
    answer = {"count": len(token_ids), "max_model_len": model.max_model_len, "tokens": token_ids, "token_strs": names}
    # A tenth of the time of Python's own, which holds the interpreter too.
    return Response(to_json(answer), media_type="application/json")


def _text(body: DetokenizeRequest, model: Served) -> Response:
    for index, token_id in enumerate(body.tokens):
        if token_id >= model.vocab_size:
            raise unknown_token(f"tokens[{index}]", token_id, model.vocab_size)
    return JSONResponse({"prompt": model.tokenizer.backend.decode(body.tokens, skip_special_tokens=False)})


def _token_ids(body: TokenizeRequest, model: Served) -> list[int]:
    if body.messages is not None:
        # A template writes the special tokens itself.
        adds_special_tokens = bool(body.add_special_tokens)
        return model.tokenizer.encode(
            render(body.messages, generating(model), body.tools, body),
            add_special_tokens=adds_special_tokens,
            param="messages",
        )
    assert body.prompt is not None, "a request has a prompt or messages"
    return model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
