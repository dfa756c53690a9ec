"""The answers to chats and completions.

Source: https://platform.openai.com/docs/api-reference/chat/object, .../chat-streaming, .../completions/object,
.../models/object; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (extensions)
"""

from typing import Literal, NotRequired, TypedDict

type FinishReason = Literal["stop", "length"]
type ChatFinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class PromptTokensDetails(TypedDict):
    """Where a prompt's tokens came from."""

    cached_tokens: int
    """Tokens that were found in the prefix cache and not computed again."""
    image_tokens: NotRequired[int]
    """Tokens of images, if the prompt has some."""


class PredictedTokens(TypedDict):
    """What became of the tokens of a prediction; of requests with one."""

    accepted_prediction_tokens: NotRequired[int]
    """Tokens of `prediction` that were drafted and are in the answers."""
    rejected_prediction_tokens: NotRequired[int]
    """Tokens of `prediction` that were drafted and are not; they count for nothing else."""


class CompletionTokensDetails(PredictedTokens):
    """What a completion's tokens are."""

    reasoning_tokens: int
    """Tokens of the thinking, its tags included; 0 for models that write none between tags."""


class Usage(TypedDict):
    """Token counts of a request; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    """Tokens of all prompts, special tokens included."""
    completion_tokens: int
    """Tokens of all choices, without stop tokens."""
    total_tokens: int
    """The sum of both."""
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UsageOfChunk(TypedDict):
    """The token counts in a chunk that is not the last one."""

    usage: NotRequired[Usage | None]


class TopLogprob(TypedDict):
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


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat's choice, one entry a token."""

    content: list[TokenLogprob]
    refusal: None


class PromptLogprob(TypedDict):
    """A candidate for one token of a prompt."""

    logprob: float
    rank: int
    """1 for the likeliest token of the vocabulary."""
    decoded_token: str


type PromptLogprobs = list[dict[str, PromptLogprob] | None]
type StopReason = int | str | None


class CalledFunction(TypedDict):
    """A function and the arguments of one call."""

    name: str
    arguments: str
    """A JSON object, serialized, which satisfies the function's schema unless `finish_reason` is `length`."""


class ToolCallAnswer(TypedDict):
    """A call of a tool."""

    id: str
    """To be repeated in the tool's message."""
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    """Null if the message only calls tools."""
    refusal: None
    tool_calls: NotRequired[list[ToolCallAnswer]]
    """If the model called tools."""
    function_call: NotRequired[CalledFunction | None]
    """If the model called one of the request's `functions`."""
    reasoning_content: NotRequired[str]
    """The thinking before the answer, for models that write it between tags; else absent."""
    reasoning: NotRequired[str]
    """The newer name of `reasoning_content`."""


class ChatChoice(TypedDict):
    """One continuation of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    """`stop`: a stop token or a stop string ended it; `length`: a limit on tokens did; `tool_calls`: it ended with
    calls, and the request did not name the function."""
    stop_reason: StopReason
    """The one of `stop` or `stop_token_ids` that ended it; else null."""
    token_ids: list[int] | None
    """The generated tokens, if `return_token_ids` is true; else null."""


class AnswerHead(TypedDict):
    """What answers and the events of streams begin with."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str
    """Changes with the weights and with the code that computes with them."""


class ChatCompletion(AnswerHead):
    """The answer of POST /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None
    """The prompt's tokens, if `return_token_ids` is true; else null."""
    prompt_logprobs: PromptLogprobs | None
    """For each token of the prompt the candidates by token id, null for the first; if `prompt_logprobs` asks."""


class CalledFunctionDelta(TypedDict):
    """The part of a call that a chunk brings."""

    name: NotRequired[str]
    """In the first chunk of a call."""
    arguments: str
    """The next piece."""


class ToolCallDelta(TypedDict):
    """A call, or the next part of one."""

    index: int
    """Among the message's calls."""
    id: NotRequired[str]
    """In the first chunk of a call."""
    type: NotRequired[Literal["function"]]
    """In the first chunk of a call."""
    function: CalledFunctionDelta


class ChatDelta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[Literal["assistant"]]
    """In the first chunk of a choice."""
    content: NotRequired[str]
    """The next part of the text."""
    tool_calls: NotRequired[list[ToolCallDelta]]
    """The next part of a call."""
    function_call: NotRequired[CalledFunctionDelta]
    """The next part of a call of one of the request's `functions`."""
    reasoning_content: NotRequired[str]
    """The next part of the thinking."""
    reasoning: NotRequired[str]
    """The same."""


class ChatChunkChoice(TypedDict):
    """The part of a choice that a chunk brings."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    """In the last chunk of a choice; null before."""
    stop_reason: StopReason
    """In the last chunk of a choice, the one of `stop` or `stop_token_ids` that ended it; else null."""
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(AnswerHead):
    """One event of a streamed chat; after the last one comes `data: [DONE]`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    """Empty in the chunk that carries the usage."""
    usage: NotRequired[Usage | None]
    """In the last chunk, if `stream_options.include_usage` is true; with `continuous_usage_stats` in every chunk."""
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a completion, in parallel lists with one entry a token."""

    text_offset: list[int]
    """Where each token begins, in characters of the text."""
    tokens: list[str]
    token_logprobs: list[float | None]
    """Null for a prompt's first token, which has no context."""
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """One continuation of a prompt, or in a stream the next part of it."""

    index: int
    """The index of the prompt times `n`, plus the number of the continuation."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """`stop` or `length`; null in every chunk of a stream but a choice's last."""
    stop_reason: StopReason
    """The one of `stop` or `stop_token_ids` that ended it; else null."""
    prompt_token_ids: NotRequired[list[int] | None]
    token_ids: NotRequired[list[int] | None]
    prompt_logprobs: NotRequired[PromptLogprobs | None]
    """Not in streams."""


class CompletionHead(AnswerHead):
    """What a completion and the events of its stream begin with."""

    object: Literal["text_completion"]


class Completion(CompletionHead):
    """The answer of POST /v1/completions, and each event of its stream, after which comes `data: [DONE]`."""

    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    """Always in an answer; in the events of a stream as `stream_options` asks."""
