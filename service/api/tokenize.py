"""POST /tokenize, POST /detokenize, GET /tokenizer_info and GET /version, as vLLM has them.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import Arrival, ServedModel, arrival, generating
from service.api.generation.token_answers import text_answer, token_answer
from service.api.http.receive import json_body
from service.api.openapi.responses import BODY_ERRORS, answers
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest

router = APIRouter()


@router.post("/tokenize", tags=["tokens"], responses=answers("Tokens", *BODY_ERRORS))
async def tokenize(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))],
) -> Response:
    """Return the token ids that a prompt or a chat has; it may be longer than the context."""
    context = await arrived.any_context(body.model)
    if body.messages is not None:
        generating(context.model)
    return Response(await context.make_prompt(body, token_answer), media_type="application/json")


@router.post("/detokenize", tags=["tokens"], responses=answers("Text", *BODY_ERRORS))
async def detokenize(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))],
) -> Response:
    """Return the text of token ids, special tokens included."""
    context = await arrived.any_context(body.model)
    return Response(await context.make_prompt(body, text_answer), media_type="application/json")


@router.get("/tokenizer_info", tags=["tokens"], responses=answers("TokenizerInfo", 503))
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


@router.get("/version", tags=["service"], responses=answers("Version"))
async def show_version() -> Response:
    """Return the version of Levserve."""
    return JSONResponse({"version": installed_version()})


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("levserve")
    except PackageNotFoundError:  # it runs from its source
        return "not installed"
