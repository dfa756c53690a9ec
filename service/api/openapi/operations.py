"""The operations of the API: which body each takes, which answer it gives, and which errors it can have."""

from dataclasses import dataclass

from service.api.openapi import answers, other_answers, response_answers
from service.api.openapi.answer_object import AnswerObject
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.api.schema.wire import WireObject

# Statuses of an operation that needs the model, and those that a body adds.
OF_MODEL = (404, 503)
OF_BODY = (400, 404, 408, 413, 415, 500, 503, 504)
OF_GENERATION = (*OF_BODY, 429)


@dataclass(frozen=True)
class Operation:
    """One route as clients see it."""

    tag: str
    answer: type[AnswerObject] | None  # None: text
    body: type[WireObject] | None = None
    event: type[AnswerObject] | None = None  # of the stream, if the body asks for one
    errors: tuple[int, ...] = ()
    answers_503: bool = False  # with the same schema
    needs_key: bool = True


# By the name of the handler.
OPERATIONS: dict[str, Operation] = {
    "create_chat_completion": Operation(
        "generation",
        answers.ChatCompletion,
        body=ChatCompletionRequest,
        event=answers.ChatCompletionChunk,
        errors=OF_GENERATION,
    ),
    "create_completion": Operation(
        "generation",
        answers.Completion,
        body=CompletionRequest,
        event=answers.Completion,
        errors=OF_GENERATION,
    ),
    "create_response": Operation(
        "generation",
        response_answers.ResponseObject,
        body=ResponsesRequest,
        event=response_answers.ResponseEvent,
        errors=OF_GENERATION,
    ),
    "list_models": Operation("models", other_answers.ModelList, errors=(503,)),
    "retrieve_model": Operation("models", other_answers.Model, errors=OF_MODEL),
    "tokenize": Operation("tokens", other_answers.Tokens, body=TokenizeRequest, errors=OF_BODY),
    "detokenize": Operation("tokens", other_answers.Text, body=DetokenizeRequest, errors=OF_BODY),
    "describe_tokenizer": Operation("tokens", other_answers.TokenizerInfo, errors=(503,)),
    "show_version": Operation("service", other_answers.Version),
    "live": Operation("service", other_answers.Liveness, answers_503=True, needs_key=False),
    "ready": Operation("service", other_answers.Readiness, answers_503=True, needs_key=False),
    "metrics": Operation("service", None),
    "describe": Operation("service", other_answers.Description),
}
