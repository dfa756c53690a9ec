"""The fields of requests for vectors, scores and token ids, and of files and batches."""

from dataclasses import replace

from service.api.schema import adapters, batches, embeddings, loads, pooling, rerank, stored_responses, tokenize
from tests.api.schema.generation_requests import TEMPLATE, TOOLS
from tests.api.schema.parts_of_requests import MESSAGE
from tests.api.schema.values import (
    DOCUMENTS,
    FLAG,
    INT32_MAX,
    LONG_NAME,
    METADATA,
    REQUIRED,
    SCORED_TEXTS,
    TEXTS,
    Field,
    Values,
    choice,
    field,
    ids,
    integer,
    list_of,
    nested,
    text,
)

ENCODER = {
    "model": field(REQUIRED, LONG_NAME),
    "truncate_prompt_tokens": field(None, replace(integer(-1, INT32_MAX), unstated=(0,))),
    "user": field(None, LONG_NAME),
}
VECTORS = ENCODER | {
    "input": field(REQUIRED, TEXTS),
    "dimensions": field(None, integer(1, INT32_MAX)),
    "encoding_format": field("float", choice("float", "base64")),
    "prompt_name": field(None, LONG_NAME),
    "input_type": field(
        None, choice("query", "search_query", "document", "search_document", "classification", "clustering")
    ),
}
EXPIRY = nested({"anchor": "created_at", "seconds": 3600}, refused=({"seconds": 3600},))


# Of each kind of request its least one, and its fields.
OTHER_REQUESTS: dict[type, tuple[dict[str, object], dict[str, Field]]] = {
    adapters.AdapterRequest: (
        {"lora_name": "a"},
        {
            "lora_name": field(REQUIRED, text(shortest=1)),
            "lora_path": field(None, text()),
            "load_inplace": field(False, FLAG),
        },
    ),
    embeddings.EmbeddingsRequest: ({"model": "m", "input": "hi"}, VECTORS),
    pooling.PoolingRequest: (
        {"model": "m", "input": "hi"},
        VECTORS
        | {
            "dimensions": field(None, integer(1, INT32_MAX), task="embed"),
            "task": field(None, choice("embed", "token_embed", "token_classify", "classify")),
        },
    ),
    pooling.EmbeddingRequest: (
        {"content": "hi"},
        {
            "model": field(None, LONG_NAME),
            "content": field(REQUIRED, TEXTS),
            "input": field(None, TEXTS, content=None),
            "embd_normalize": field(2, Values((2,), (1, 3, "2"))),
        },
    ),
    rerank.RerankRequest: (
        {"model": "m", "query": "hi", "documents": ["a"]},
        ENCODER
        | {
            "query": field(REQUIRED, text(shortest=1)),
            "documents": field(REQUIRED, DOCUMENTS),
            "top_n": field(None, integer(1, INT32_MAX)),
            "return_documents": field(None, FLAG),
            "max_tokens_per_doc": field(None, integer(1, INT32_MAX)),
            "rid": field(None, Values(("a", ["a", "b"]), (7, True))),
        },
    ),
    rerank.ScoreRequest: (
        {"model": "m", "text_1": "a", "text_2": "b"},
        ENCODER
        | {
            "text_1": Field(REQUIRED, SCORED_TEXTS, lambda value: {"text_2": ["b"] * 2048}),
            "text_2": field(REQUIRED, SCORED_TEXTS),
        },
    ),
    tokenize.TokenizeRequest: (
        {"messages": [MESSAGE]},
        TEMPLATE
        | {
            "model": field(None, LONG_NAME),
            "prompt": field(None, text(), messages=None),
            "messages": field(REQUIRED, list_of(lambda index: {"role": "user"}, 7, shortest=1)),
            "add_special_tokens": field(None, FLAG),
            "tools": field([], TOOLS),
            "return_token_strs": field(False, FLAG),
        },
    ),
    tokenize.DetokenizeRequest: (
        {"tokens": [1]},
        {"model": field(None, LONG_NAME), "tokens": field(REQUIRED, ids())},
    ),
    batches.FileFields: (
        {"purpose": "batch"},
        {"purpose": field(REQUIRED, choice("batch")), "expires_after": field(None, EXPIRY)},
    ),
    batches.ExpiresAfter: (
        {"anchor": "created_at", "seconds": 3600},
        {
            "anchor": field(REQUIRED, choice("created_at")),
            "seconds": field(REQUIRED, integer(3600, 30 * 24 * 3600)),
        },
    ),
    batches.FileQuery: (
        {},
        {
            "purpose": field(None, LONG_NAME),
            "limit": field(10_000, integer(1, 10_000)),
            "order": field("desc", choice("asc", "desc")),
            "after": field(None, LONG_NAME),
        },
    ),
    batches.BatchRequest: (
        {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"},
        {
            "input_file_id": field(REQUIRED, LONG_NAME),
            "endpoint": field(
                REQUIRED, choice("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
            ),
            "completion_window": field(REQUIRED, choice("24h")),
            "metadata": field(None, METADATA),
            "output_expires_after": field(None, EXPIRY),
        },
    ),
    loads.LoadsQuery: (
        {},
        {
            "include": field("all", Values(("core,memory", ""), (7,), unstated=("other",))),
            "model": field(None, LONG_NAME),
        },
    ),
    stored_responses.ResponseQuery: ({}, {}),
    stored_responses.ItemsQuery: (
        {},
        {
            "limit": field(20, integer(1, 100)),
            "order": field("desc", choice("asc", "desc")),
            "after": field(None, LONG_NAME),
        },
    ),
    batches.BatchQuery: ({}, {"limit": field(20, integer(1, 100)), "after": field(None, LONG_NAME)}),
}
