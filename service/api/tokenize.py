"""POST /tokenize, POST /detokenize, GET /tokenizer_info and GET /version, as vLLM has them.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from service.api.answers.service import Text, TokenizerInfo, Tokens, Version
from service.api.dependencies import OpenCall
from service.api.description import installed_version
from service.api.generation.images import made_prompt
from service.api.generation.token_answers import text_answer, token_answer
from service.api.http.receive import json_body
from service.api.openapi.responses import BODY_ERRORS, answers
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.api.served import ServedModel

router = APIRouter()


@router.post("/tokenize", tags=["tokens"], responses=answers(Tokens, *BODY_ERRORS))
async def tokenize(
    call: OpenCall,
    body: Annotated[TokenizeRequest, Depends(json_body(TokenizeRequest))],
) -> Response:
    """Return the token ids that a prompt or a chat has; it may be longer than the context."""
    model = await call.model(body.model)
    if body.messages is None:
        call.check_text_bytes(0)
        answer = await call.make_prompt(token_answer, body, model)
    else:
        chat_model, salt = model.generating(), call.cache_salt
        answer, _ = await made_prompt(call, chat_model, body, token_answer, cache_salt=salt, is_answered=False)
    return Response(answer, media_type="application/json")


@router.post("/detokenize", tags=["tokens"], responses=answers(Text, *BODY_ERRORS))
async def detokenize(
    call: OpenCall,
    body: Annotated[DetokenizeRequest, Depends(json_body(DetokenizeRequest))],
) -> Response:
    """Return the text of token ids, special tokens included."""
    model = await call.model(body.model)
    return Response(await call.make_prompt(text_answer, body, model), media_type="application/json")


@router.get("/tokenizer_info", tags=["tokens"], responses=answers(TokenizerInfo, 503))
async def describe_tokenizer(request: Request, call: OpenCall) -> Response:
    """Return what prompts are made with: the special tokens, by transformers' names, and the chat template.

    Deviations: `?model=` names the model; it is needed only where there are several.
    """
    model = await call.model(request.query_params.get("model"))
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    chat_template = model.chat_template if isinstance(model, ServedModel) else None
    template = None if chat_template is None else chat_template.source
    return JSONResponse(
        {**names, **model.tokenizer.special_tokens, "chat_template": template, "model_max_length": model.max_model_len}
    )


@router.get("/version", tags=["service"], responses=answers(Version))
async def show_version() -> Response:
    """Return the version of Levserve."""
    return JSONResponse({"version": installed_version()})
