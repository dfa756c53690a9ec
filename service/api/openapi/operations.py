"""The operations of the API: which body each takes, which answer it gives, and which errors it can have."""

from dataclasses import dataclass

from service.api.openapi import (
    answers,
    batch_answers,
    message_answers,
    ollama_answers,
    other_answers,
    response_answers,
    vector_answers,
)
from service.api.openapi.answer_object import AnswerObject
from service.api.schema.batches import BatchQuery, BatchRequest, FileFields, FileQuery
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.loads import LoadsQuery
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.api.schema.ollama import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from service.api.schema.pooling import EmbeddingRequest, PoolingRequest
from service.api.schema.rerank import RerankRequest, ScoreRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.stored_responses import ItemsQuery, ResponseQuery
from service.api.schema.tokenize import DetokenizeRequest, TokenizeRequest
from service.api.schema.wire import WireObject

# Statuses of an operation that needs the model, and those that a body adds.
OF_MODEL = (404, 503)
OF_BODY = (400, 404, 408, 413, 415, 500, 503, 504)
OF_GENERATION = (*OF_BODY, 429)
OF_STORE = (400, 404, 503)


@dataclass(frozen=True)
class Operation:
    """One route as clients see it."""

    tag: str
    answer: type[AnswerObject] | None  # None: no JSON
    is_list: bool = False  # whether the answer is a list of such objects
    body: type[WireObject] | None = None
    bodies: tuple[type[WireObject], ...] = ()  # instead of a body: one of several kinds
    form: type[WireObject] | None = None  # with a file; instead of a body
    query: type[WireObject] | None = None
    media_type: str = "text/plain"  # of an answer that is no JSON
    event: type[AnswerObject] | None = None  # of the stream, if the body asks for one
    stream_media_type: str = "text/event-stream"
    errors: tuple[int, ...] = ()
    error: type[AnswerObject] = other_answers.Error  # what their answers are
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
    "retrieve_response": Operation("generation", response_answers.ResponseObject, query=ResponseQuery, errors=OF_STORE),
    "delete_response": Operation("generation", response_answers.DeletedResponse, errors=(404, 503)),
    "list_input_items": Operation("generation", response_answers.InputItemList, query=ItemsQuery, errors=OF_STORE),
    "cancel_response": Operation("generation", response_answers.ResponseObject, errors=OF_STORE),
    "render_chat_completion": Operation(
        "tokens", other_answers.RenderedPrompt, body=ChatCompletionRequest, errors=OF_BODY
    ),
    "render_completion": Operation(
        "tokens", other_answers.RenderedPrompt, is_list=True, body=CompletionRequest, errors=OF_BODY
    ),
    "render_response": Operation("tokens", other_answers.RenderedPrompt, body=ResponsesRequest, errors=OF_BODY),
    "create_message": Operation(
        "generation",
        message_answers.MessageObject,
        body=MessagesRequest,
        event=message_answers.MessageEvent,
        errors=OF_GENERATION,
        error=message_answers.MessageError,
    ),
    "count_message_tokens": Operation(
        "tokens",
        message_answers.MessageTokens,
        body=CountTokensRequest,
        errors=OF_BODY,
        error=message_answers.MessageError,
    ),
    "create_file": Operation("batches", batch_answers.FileObject, form=FileFields, errors=(400, 408, 413, 415, 503)),
    "list_files": Operation("batches", batch_answers.FileList, query=FileQuery, errors=(400, 503)),
    "retrieve_file": Operation("batches", batch_answers.FileObject, errors=(404, 503)),
    "delete_file": Operation("batches", batch_answers.DeletedFile, errors=(404, 503)),
    "download_file": Operation("batches", None, media_type="application/octet-stream", errors=(404, 503)),
    "create_batch": Operation(
        "batches", batch_answers.BatchObject, body=BatchRequest, errors=(400, 408, 413, 415, 503)
    ),
    "list_batches": Operation("batches", batch_answers.BatchList, query=BatchQuery, errors=(400, 503)),
    "retrieve_batch": Operation("batches", batch_answers.BatchObject, errors=(404, 503)),
    "cancel_batch": Operation("batches", batch_answers.BatchObject, errors=OF_STORE),
    "create_embeddings": Operation(
        "embeddings", vector_answers.Embeddings, body=EmbeddingsRequest, errors=OF_GENERATION
    ),
    "pool": Operation("embeddings", vector_answers.Pooling, body=PoolingRequest, errors=OF_GENERATION),
    "embed_like_llama_cpp": Operation("embeddings", None, body=EmbeddingRequest, errors=OF_GENERATION),
    "rerank": Operation("embeddings", vector_answers.Reranked, body=RerankRequest, errors=OF_GENERATION),
    "rerank_like_cohere": Operation("embeddings", vector_answers.Reranked, body=RerankRequest, errors=OF_GENERATION),
    "create_score": Operation("embeddings", vector_answers.Scores, body=ScoreRequest, errors=OF_GENERATION),
    "chat_like_ollama": Operation(
        "ollama",
        ollama_answers.OllamaChat,
        body=OllamaChatRequest,
        event=ollama_answers.OllamaChat,
        stream_media_type="application/x-ndjson",
        errors=OF_GENERATION,
        error=ollama_answers.OllamaError,
    ),
    "generate_like_ollama": Operation(
        "ollama",
        ollama_answers.OllamaGenerated,
        body=OllamaGenerateRequest,
        event=ollama_answers.OllamaGenerated,
        stream_media_type="application/x-ndjson",
        errors=OF_GENERATION,
        error=ollama_answers.OllamaError,
    ),
    "embed_like_ollama": Operation(
        "ollama",
        ollama_answers.OllamaEmbeddings,
        body=OllamaEmbedRequest,
        errors=OF_GENERATION,
        error=ollama_answers.OllamaError,
    ),
    "embed_like_older_ollama": Operation(
        "ollama",
        ollama_answers.OllamaEmbedding,
        body=OllamaEmbedRequest,
        errors=OF_GENERATION,
        error=ollama_answers.OllamaError,
    ),
    "show_ollama_version": Operation("ollama", other_answers.Version),
    "list_models_like_ollama": Operation(
        "ollama", ollama_answers.OllamaModels, errors=(503,), error=ollama_answers.OllamaError
    ),
    "list_loaded_models": Operation(
        "ollama", ollama_answers.LoadedModels, errors=(503,), error=ollama_answers.OllamaError
    ),
    "show_model": Operation(
        "ollama",
        ollama_answers.ShownModel,
        body=OllamaShowRequest,
        errors=OF_BODY,
        error=ollama_answers.OllamaError,
    ),
    "invoke": Operation(
        "generation",
        other_answers.Invoked,
        bodies=(
            ChatCompletionRequest,
            CompletionRequest,
            RerankRequest,
            ScoreRequest,
            PoolingRequest,
            EmbeddingsRequest,
        ),
        errors=OF_GENERATION,
    ),
    "list_models": Operation("models", other_answers.ModelList, errors=(503,)),
    "retrieve_model": Operation("models", other_answers.Model, errors=OF_MODEL),
    "tokenize": Operation("tokens", other_answers.Tokens, body=TokenizeRequest, errors=OF_BODY),
    "detokenize": Operation("tokens", other_answers.Text, body=DetokenizeRequest, errors=OF_BODY),
    "describe_tokenizer": Operation("tokens", other_answers.TokenizerInfo, errors=(503,)),
    "show_version": Operation("service", other_answers.Version),
    "describe_model": Operation("models", other_answers.ModelInfo, query=LoadsQuery, errors=(400, *OF_MODEL)),
    "describe_server": Operation("service", other_answers.ServerInfo, query=LoadsQuery, errors=(400, *OF_MODEL)),
    "list_loads": Operation("service", other_answers.Loads, query=LoadsQuery, errors=(400, *OF_MODEL)),
    "list_loads_as_earlier": Operation(
        "service", other_answers.EarlierLoad, is_list=True, query=LoadsQuery, errors=(400, *OF_MODEL)
    ),
    "live": Operation("service", other_answers.Liveness, answers_503=True, needs_key=False),
    "ready": Operation("service", other_answers.Readiness, answers_503=True, needs_key=False),
    "metrics": Operation("service", None),
    "metrics_load": Operation("service", None),
    "describe": Operation("service", other_answers.Description),
}
