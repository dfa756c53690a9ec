"""An engine that follows a script, a start in any state, and an app around them."""

import asyncio
import threading
import time
from dataclasses import dataclass

import httpx

from service.api.application import create_api
from service.api.backend import OneModel
from service.api.http.access_log import AccessLog
from service.api.http.keys import ApiKeys, plain_keys
from service.api.served import ServedModel
from service.engine.request import FinishReason, TokenEvent, TokenLogprobs
from service.errors import Overloaded
from service.observability.clock import Clock
from service.observability.metrics import Metrics
from service.text.chat_template import ChatTemplate
from service.text.generation_defaults import GenerationDefaults
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level

MODEL = "org/small-chat"
MAX_MODEL_LEN = 256
TOKENIZER = Tokenizer(byte_level(adds_begin=True), special_tokens={"bos_token": "<|begin|>"})
END = TOKENIZER.backend.token_to_id("<|end|>")
TEMPLATE = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'user' and m.content == 'refuse' %}{{ raise_exception('no such thing') }}"
    "{% endif %}<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}<|turn|>assistant:",
    TOKENIZER.special_tokens,
)
STALL = object()


@dataclass(frozen=True)
class StopToken:
    """The end of a script by a stop token other than END."""

    id: int


class Wait:
    """A place in a script that every sequence waits at until the test, in whatever thread, lets it go on."""

    def __init__(self):
        self.over = threading.Event()


def scripted_logprobs(token_id, num_top):
    """Return the log-probabilities of a token: itself the likeliest, and the ids after it in falling order."""
    top = tuple((token_id + i, -0.25 * (i + 1)) for i in range(num_top))
    return TokenLogprobs(-0.25, 1, top)


def tokens(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


class ScriptedStream:
    def __init__(self, request, script, pace_s):
        self.request = request
        self.pace_s = pace_s
        self.is_aborted = False
        self.num_events = 0
        self.clock = Clock(time.perf_counter())
        self.waited_for_compile_s = 0.0
        self._script = script

    async def __aiter__(self):
        num_tokens = 0
        self.clock.scheduled_s = time.perf_counter()
        for step in self._script:
            await asyncio.sleep(self.pace_s)
            if step is STALL:
                await asyncio.Event().wait()
            if isinstance(step, Wait):
                while not step.over.is_set():
                    await asyncio.sleep(0.001)
                continue
            if isinstance(step, Exception):
                raise step
            if isinstance(step, TokenEvent):
                yield step
                if step.finish_reason is not None:
                    return
                continue
            if isinstance(step, FinishReason):
                yield self._with_logprobs(TokenEvent((), step))
                return
            if isinstance(step, StopToken):
                yield self._with_logprobs(TokenEvent((), FinishReason.STOP), step.id)
                return
            now_s = self.clock.last_token_s = time.perf_counter()
            self.clock.first_token_s = self.clock.first_token_s or now_s
            ids = (step,) if isinstance(step, int) else tuple(step)
            num_tokens += len(ids)
            is_full = num_tokens >= self.request.max_tokens
            yield self._with_logprobs(TokenEvent(ids, FinishReason.LENGTH if is_full else None))
            if is_full:
                return

    def abort(self):
        self.is_aborted = True

    def _with_logprobs(self, event, stop_id=END):
        request, logprobs, of_prompt = self.request, (), ()
        stop = (stop_id, None) if event.finish_reason is FinishReason.STOP else None
        self.num_events += 1
        if (num := request.sampling.num_logprobs) is not None:
            logprobs = tuple(scripted_logprobs(token_id, num) for token_id in event.token_ids)
            stop = stop and (stop_id, scripted_logprobs(stop_id, num))
        if self.num_events == 1 and (num := request.num_prompt_logprobs) is not None:
            of_prompt = (None, *(scripted_logprobs(token_id, num) for token_id in request.prompt_ids[1:]))
        return event._replace(logprobs=logprobs, prompt_logprobs=of_prompt, stop=stop)


class ScriptedEngine:
    """Every request gets the same script: token ids, events, finish reason or stop token, exception, Wait, or STALL."""

    def __init__(self, script):
        self.script = script
        self.refusal = None
        self.max_streams = None  # one more is refused
        self.pace_s = 0  # seconds before each event
        self.streams = []

    def submit(self, request):
        if self.refusal is not None:
            raise self.refusal
        if len(self.streams) == self.max_streams:
            raise Overloaded(running=self.max_streams, limit=self.max_streams)
        self.streams.append(ScriptedStream(request, self.script, self.pace_s))
        return self.streams[-1]

    @property
    def last(self):
        return self.streams[-1]


class ScriptedReadiness(OneModel):
    def __init__(self, model):
        super().__init__(model)
        self.error = None
        self.status_once_started = "complete"

    @property
    def is_ready(self):
        return self.error is None

    @property
    def status(self):
        return "starting" if self.error is not None else self.status_once_started

    def progress(self):
        return {"phase": "weights", "bytes": 12}

    def check_open(self):
        if self.error is not None:
            raise self.error


def model_of(engine, **changes):
    facts = {
        "name": MODEL,
        "created": 1_700_000_000,
        "engine": engine,
        "tokenizer": TOKENIZER,
        "chat_template": TEMPLATE,
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": TOKENIZER.vocab_size,
        "defaults": GenerationDefaults(),
        "stop_ids": frozenset({END}),
        "system_fingerprint": "fp_1",
        "number_formats": {"dtype": "float32", "quantization": "int8", "kv_dtype": "float32"},
    }
    return ServedModel(**(facts | changes))


class Service:
    """The app, with its engine and readiness at hand."""

    def __init__(
        self, script=None, *, engine=None, model=None, api_keys=(), strict_fields=False, tracer=None, **settings
    ):
        script = [*tokens("Hello world"), FinishReason.STOP] if script is None else script
        self.engine = engine or ScriptedEngine(script)
        self.readiness = ScriptedReadiness(model_of(self.engine, **(model or {})))
        self.metrics = Metrics()
        self.fastapi = create_api(self.readiness, self.metrics, **{"keys": ApiKeys(plain_keys(api_keys))} | settings)
        self.app = AccessLog(self.fastapi, metrics=self.metrics, strict_fields=strict_fields, tracer=lambda: tracer)

    @property
    def process(self):
        """The process for long bodies."""
        return self.fastapi.state.context.long_bodies.process

    def client(self, **options):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://test", **options)

    async def post(self, path, body=None, **options):
        async with self.client() as client:
            return await client.post(path, json=body, **options)

    async def chat(self, content="hi", **fields):
        messages = [{"role": "user", "content": content}]
        return await self.post("/v1/chat/completions", {"model": MODEL, "messages": messages} | fields)

    async def complete(self, prompt="Once", **fields):
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt} | fields)
