"""What answers hold, for the document; handlers write their JSON without these models.

Source: https://platform.openai.com/docs/api-reference/chat/object, .../chat-streaming, .../completions/object,
.../models/object; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (extensions)
"""

from typing import Literal

from pydantic import Field

from service.api.openapi.answer_object import AnswerObject

type FinishReason = Literal["stop", "length"]


class PromptTokensDetails(AnswerObject):
    """Where a prompt's tokens came from."""

    cached_tokens: int
    """Tokens that were found in the prefix cache and not computed again."""


class Usage(AnswerObject):
    """Token counts of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    """Tokens of all prompts, special tokens included."""
    completion_tokens: int
    """Tokens of all choices, without stop tokens."""
    total_tokens: int
    """The sum of both."""
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(AnswerObject):
    """A token with its log-probability."""

    token: str
    """Its text; an incomplete character is shown as U+FFFD."""
    logprob: float
    """Natural logarithm of its probability, the model's own: before temperature, bias and penalties; at least -9999."""
    bytes: list[int]
    """Its bytes, which concatenate to the text even where a character is several tokens."""


class TokenLogprob(TopLogprob):
    """A sampled token with the likeliest alternatives."""

    top_logprobs: list[TopLogprob]
    """The likeliest tokens, in falling order; as many as `top_logprobs` asks for."""


class ChatLogprobs(AnswerObject):
    """Log-probabilities of a chat's choice, one entry a token."""

    content: list[TokenLogprob]
    refusal: None


class PromptLogprob(AnswerObject):
    """A candidate for one token of a prompt."""

    logprob: float
    rank: int
    """1 for the likeliest token of the vocabulary."""
    decoded_token: str


type PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatMessage(AnswerObject):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(AnswerObject):
    """One continuation of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    """`stop`: a stop token or a stop string ended it; `length`: a limit on tokens did."""
    token_ids: list[int] = Field(default_factory=list)
    """The generated tokens, if `return_token_ids` is true."""


class ChatCompletion(AnswerObject):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Unix time in seconds."""
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = Field(default_factory=list)
    """The prompt's tokens, if `return_token_ids` is true."""
    prompt_logprobs: PromptLogprobs | None = None
    """For each token of the prompt the candidates by token id, null for the first; if `prompt_logprobs` asks."""


class ChatDelta(AnswerObject):
    """What a chunk adds to a message."""

    role: Literal["assistant"] = "assistant"
    """In the first chunk of a choice."""
    content: str = ""
    """The next part of the text."""


class ChatChunkChoice(AnswerObject):
    """The part of a choice that a chunk brings."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    """In the last chunk of a choice; null before."""
    token_ids: list[int] = Field(default_factory=list)


class ChatCompletionChunk(AnswerObject):
    """One event of a streamed chat; after the last one comes `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    """Empty in the chunk that carries the usage."""
    usage: Usage | None = None
    """In the last chunk, if `stream_options.include_usage` is true; with `continuous_usage_stats` in every chunk."""
    prompt_token_ids: list[int] = Field(default_factory=list)


class CompletionLogprobs(AnswerObject):
    """Log-probabilities of a completion, in parallel lists with one entry a token."""

    text_offset: list[int]
    """Where each token begins, in characters of the text."""
    tokens: list[str]
    token_logprobs: list[float | None]
    """Null for a prompt's first token, which has no context."""
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(AnswerObject):
    """One continuation of a prompt, or in a stream the next part of it."""

    index: int
    """The index of the prompt times `n`, plus the number of the continuation."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """`stop` or `length`; null in every chunk of a stream but a choice's last."""
    prompt_token_ids: list[int] = Field(default_factory=list)
    token_ids: list[int] = Field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None


class Completion(AnswerObject):
    """The answer of POST /v1/completions, and each event of its stream, after which comes `data: [DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    """Unix time in seconds."""
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    """Always in an answer; in the events of a stream as `stream_options` asks."""
