"""The loaded model that a start hands to the API: one that generates text, or an encoder."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, override

from service.encoder.cache import VectorCache
from service.errors import UnknownModel, WrongKindOfModel
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults
from service.text.grammar.compiler import GrammarCompiler
from service.text.images import ImageText
from service.text.prompt_model import PromptModel
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from service.encoder.encoder import TextEncoder
    from service.engine.engine import Engine
    from service.engine.group import EngineGroup
    from service.engine.request import Adapter
    from service.engine.shapes import RowShapes
    from service.media.log_mel import Recording
    from service.media.scaling import Scaler
    from service.media.tiles import Tiler
    from service.models.encoders.token_heads import TokenOutputs
    from service.observability.clock import Clock, QueueDeadline
    from service.text.chat_template import ChatTemplate
    from service.text.speech.model import SpeechModel
    from service.text.speech.transcribe import WindowDecoder


@dataclass(frozen=True, kw_only=True)
class Served:
    """A loaded model of any kind."""

    name: str  # the `model` of requests
    created: int  # Unix time of the load, in seconds
    tokenizer: Tokenizer
    max_model_len: int  # tokens; of prompt and completion together, or of one text
    vocab_size: int  # rows of the embedding; valid token ids are less
    system_fingerprint: str  # of what answers depend on: the weights, and the code that computes with them
    other_names: tuple[str, ...] = ()

    @cached_property
    def prompt_model(self) -> PromptModel:
        """What its prompts depend on."""
        return self._prompt_model(None)

    def _prompt_model(
        self, chat_template: "ChatTemplate | None", images: ImageText | None = None, *, keeps_states: bool = False
    ) -> PromptModel:
        return PromptModel(
            name=self.name,
            tokenizer=self.tokenizer,
            chat_template=chat_template,
            images=images,
            max_model_len=self.max_model_len,
            keeps_states=keeps_states,
            vocab_size=self.vocab_size,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every `model` that requests may name."""
        return (self.name, *self.other_names)

    @property
    def ability(self) -> str:
        """What the model does, for the refusal of another route."""
        return "is a generative model"

    @property
    def routes(self) -> str:
        """The routes that it answers."""
        return "/v1/chat/completions or /v1/completions"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The routes that it answers, below /v1/."""
        return ("completions",)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What /v1/models says besides what it says of every model."""
        return {}

    @property
    def example(self) -> tuple[str, Mapping[str, Any]]:
        """A route of the model below /v1/, and the fields of a first request to it, besides `model`."""
        return "completions", {"prompt": "Once upon a time"}

    def check_name(self, requested: str) -> None:
        """Raise UnknownModel unless a request names this model."""
        if requested not in self.names:
            raise UnknownModel(requested, self.names)

    def generating(self) -> "ServedModel":
        """Return the model if it generates text; raises WrongKindOfModel."""
        raise self._wrong_kind()

    def encoding(self) -> "ServedEncoder":
        """Return the model if it turns texts into vectors; raises WrongKindOfModel."""
        raise self._wrong_kind()

    def scoring(self) -> "ServedEncoder":
        """Return the model if it scores pairs of texts; raises WrongKindOfModel."""
        raise self._wrong_kind()

    def pooling(self) -> "ServedEncoder":
        """Return the model if it is an encoder of either kind; raises WrongKindOfModel."""
        raise self._wrong_kind()

    def hearing(self) -> "ServedSpeechModel":
        """Return the model if it takes speech; raises WrongKindOfModel."""
        raise self._wrong_kind()

    def _wrong_kind(self) -> WrongKindOfModel:
        return WrongKindOfModel(self.name, self.ability, self.routes)


@dataclass(frozen=True)
class Vision:
    """How a model takes images."""

    cutter: "Tiler | Scaler"
    text: ImageText
    token_id: int  # that stands for a row
    shapes: "RowShapes"


@dataclass(frozen=True, kw_only=True)
class ServedModel(Served):
    """A loaded model that continues sequences of tokens."""

    engine: "Engine | EngineGroup"
    chat_template: "ChatTemplate | None"  # None: completions only
    stop_ids: frozenset[int]
    defaults: GenerationDefaults  # the checkpoint's
    operator_defaults: GenerationDefaults = NO_DEFAULTS  # of this model; they come before those of all models
    read_adapter: "Callable[[str, str], Adapter] | None" = None  # by name and address; None: it has no slots for any
    adapter: "Adapter | None" = None  # with which all requests are computed
    base: str | None = None  # the name of the model that the adapter updates
    number_formats: Mapping[str, str]  # of activations, weights and cache: `dtype`, `quantization`, `kv_dtype`
    vision: Vision | None = None  # None: it reads only text
    num_drafts: int = 0  # the most tokens that are drafted for an answer in a step
    keeps_states: bool = False  # of recurrent layers

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this model, with those that it has compiled."""
        return GrammarCompiler(self.tokenizer, self.vocab_size, self.stop_ids)

    @cached_property
    @override
    def prompt_model(self) -> PromptModel:
        images = None if self.vision is None else self.vision.text
        return self._prompt_model(self.chat_template, images, keeps_states=self.keeps_states)

    @property
    @override
    def facts(self) -> Mapping[str, Any]:
        if self.vision is None:
            return self.number_formats
        return {**self.number_formats, "modalities": {"input": ["text", "image"], "output": ["text"]}}

    @property
    @override
    def example(self) -> tuple[str, Mapping[str, Any]]:
        if self.chat_template is None:
            return super().example
        return "chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}]}

    @property
    @override
    def capabilities(self) -> tuple[str, ...]:
        chat = () if self.chat_template is None else ("chat/completions", "responses", "messages")
        return (*chat, *super().capabilities)

    @property
    def series_name(self) -> str:
        """The name of the series that count its requests: those of its engine."""
        return self.name if self.base is None else self.base

    def with_adapter(
        self, names: tuple[str, ...], adapter: "Adapter", operator_defaults: GenerationDefaults
    ) -> "ServedModel":
        """Return the model that an adapter makes of this one."""
        made = replace(
            self,
            name=names[0],
            other_names=names[1:],
            adapter=adapter,
            base=self.name,
            operator_defaults=operator_defaults,
            system_fingerprint=f"{self.system_fingerprint}-{adapter.digest.hex()[:8]}",
        )
        # Neither depends on an adapter, and grammars that were compiled stay.
        vars(made).update(grammars=self.grammars, prompt_model=self.prompt_model)
        return made

    @property
    def has_thinking(self) -> bool:
        """Whether it writes its thinking before an answer, between tags or in a channel."""
        return self.chat_template is not None and self.chat_template.has_thinking

    @override
    def generating(self) -> "ServedModel":
        return self


@dataclass(frozen=True)
class VectorFacts:
    """The vectors of an encoder."""

    size: int  # dimensions
    is_normalized: bool  # whether they have length 1
    # The dimensions that they may be cut to, as the model was trained for; empty: any; None: it was not.
    matryoshka_sizes: tuple[int, ...] | None
    prompts: Mapping[str, str]  # put before texts, by name
    default_prompt: str | None
    pools_prompts: bool = True  # whether the tokens of a prompt count in a text's vector
    is_score: bool = False  # whether each is the score of a pair of texts
    template: str | None = None  # the prompt around a pair, by name; None: what the tokenizer puts around it


@dataclass(frozen=True, kw_only=True)
class ServedEncoder(Served):
    """A loaded model that turns texts into vectors."""

    encoder: "TextEncoder"
    vectors: VectorFacts
    cache: VectorCache
    tokens: "TokenOutputs | None" = None  # what makes the outputs of tokens; None: the model has none

    @property
    def tasks(self) -> tuple[str, ...]:
        """What /pooling can be asked for, as vLLM names it; the first is the default."""
        if self.vectors.is_score:
            return ("classify",)
        of_tokens = () if self.tokens is None else ("token_embed", *(("token_classify",) * self.tokens.has_weights))
        return (*of_tokens, "embed")

    @property
    @override
    def ability(self) -> str:
        return "is a reranker" if self.vectors.is_score else "is an embedding model"

    @property
    @override
    def routes(self) -> str:
        return "/v1/rerank, /v1/score or /pooling" if self.vectors.is_score else "/v1/embeddings or /pooling"

    @property
    @override
    def capabilities(self) -> tuple[str, ...]:
        return ("rerank", "score") if self.vectors.is_score else ("embeddings",)

    @property
    @override
    def facts(self) -> Mapping[str, Any]:
        return {} if self.vectors.is_score else {"embedding_dimensions": self.vectors.size}

    @property
    @override
    def example(self) -> tuple[str, Mapping[str, Any]]:
        if self.vectors.is_score:
            return "rerank", {"query": "Who is it?", "documents": ["Once upon a time", "It is I"]}
        return "embeddings", {"input": "Once upon a time"}

    @override
    def encoding(self) -> "ServedEncoder":
        if self.vectors.is_score:
            raise self._wrong_kind()
        return self

    @override
    def scoring(self) -> "ServedEncoder":
        if not self.vectors.is_score:
            raise self._wrong_kind()
        return self

    @override
    def pooling(self) -> "ServedEncoder":
        return self


@dataclass(frozen=True, kw_only=True)
class WindowTerms:
    """What the windows of one request are decoded on."""

    request_id: str
    seed: int
    priority: int
    flow: str
    weight: float
    cache_salt: bytes
    # Counts the request as one that waits, with the clock of its first window; returns until when it may wait.
    wait: "Callable[[int, Clock], QueueDeadline | None]"


@dataclass(frozen=True, kw_only=True)
class ServedSpeechModel(Served):
    """A loaded model that writes down what is said."""

    speech: "SpeechModel"
    # Opens the windows of a recording; leaving the context aborts what is decoded.
    listen: "Callable[[Recording, WindowTerms], AbstractAsyncContextManager[WindowDecoder]]"
    has_word_times: bool = False  # whether windows can be aligned with their text

    @property
    @override
    def ability(self) -> str:
        return "transcribes speech"

    @property
    @override
    def routes(self) -> str:
        return " or ".join(f"/v1/{capability}" for capability in self.capabilities)

    @property
    @override
    def capabilities(self) -> tuple[str, ...]:
        translates = ("audio/translations",) if self.speech.tokens.is_multilingual else ()
        return ("audio/transcriptions", *translates)

    @property
    @override
    def facts(self) -> Mapping[str, Any]:
        return {"modalities": {"input": ["audio"], "output": ["text"]}}

    @override
    def hearing(self) -> "ServedSpeechModel":
        return self
