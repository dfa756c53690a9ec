"""POST /tokenize, POST /detokenize and GET /version, as vLLM has them.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api
"""

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.chat import render
from service.api.dependencies import RequestContext, ServedModel, request_context
from service.api.http.receive import json_body
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.errors import InvalidParameter

router = APIRouter()


@router.post("/tokenize")
async def tokenize(
    context: Annotated[RequestContext, Depends(request_context)],
    body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))],
) -> Response:
    """Return the token ids that a prompt or a chat has; it may be longer than the context."""
    model = context.model
    if body.model is not None:
        model.check_name(body.model)
    token_ids = await context.run_in_thread(lambda: _token_ids(body, model))
    names = (
        [model.tokenizer.backend.id_to_token(token_id) for token_id in token_ids] if body.return_token_strs else None
    )
    return JSONResponse(
        {"count": len(token_ids), "max_model_len": model.max_model_len, "tokens": token_ids, "token_strs": names}
    )


@router.post("/detokenize")
async def detokenize(
    context: Annotated[RequestContext, Depends(request_context)],
    body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))],
) -> Response:
    """Return the text of token ids, special tokens included."""
    model = context.model
    if body.model is not None:
        model.check_name(body.model)
    for index, token_id in enumerate(body.tokens):
        if token_id >= model.vocab_size:
            param = f"tokens[{index}]"
            message = f"Invalid '{param}': {token_id} is not a token id of this model, whose ids are less than "
            raise InvalidParameter(f"{message}{model.vocab_size}.", param=param)
    decoded = await context.run_in_thread(
        lambda: model.tokenizer.backend.decode(list(body.tokens), skip_special_tokens=False)
    )
    return JSONResponse({"prompt": decoded})


@router.get("/version")
async def show_version() -> Response:
    """Return the version of Levserve."""
    return JSONResponse({"version": version("levserve")})


def _token_ids(body: TokenizeRequest, model: ServedModel) -> list[int]:
    if body.messages is not None:
        # A template writes the special tokens itself.
        adds_special_tokens = bool(body.add_special_tokens)
        return model.tokenizer.encode(
            render(body.messages, model), add_special_tokens=adds_special_tokens, param="messages"
        )
    assert body.prompt is not None, "a request has a prompt or messages"
    return model.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
