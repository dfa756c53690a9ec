"""The flags of `vllm serve`: those that are settings here, those that need none, and what is said to the rest.

A flag that promises something (a limit, a seed, encryption) is kept or refused. One that concerns only speed or logging
is accepted, and a line says what holds instead.
Source: https://docs.vllm.ai/en/latest/cli/serve.html
"""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from service.errors import SettingsError

MAX_PREFILL_TOKENS = 16384  # as MAX_PREFILL_TOKENS allows
DEST = "vllm flag "  # before the names of these flags in a namespace

DTYPES = {"half": "float16", "float": "float32"}
KV_DTYPES = {"fp8_e4m3": "fp8"}
LOG_LEVELS = {"critical": "ERROR", "trace": "DEBUG"}
# What a checkpoint itself states, in its `quantization_config`.
STATED_QUANTIZATION = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "mxfp4", "gpt_oss_mxfp4"}
)
COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")
FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Renamed:
    """A flag that is a setting here."""

    setting: str
    names: tuple[str, ...]  # without the dashes before them
    convert: Callable[[str], str] = str
    several: str = ""  # what joins several values; empty for a single value
    difference: str = ""


@dataclass(frozen=True)
class Refused:
    """A flag whose promise is not kept here, except with a value that asks for nothing."""

    reason: str
    harmless: tuple[str, ...] = ()


def count(text: str) -> str:
    """Return a number that may end with a factor: 32k is 32,000 and 32K is 32,768."""
    match = COUNT.fullmatch(text)
    return text if match is None else str(int(float(match[1]) * FACTORS[match[2]]))


def _model_len(text: str) -> str | None:
    return None if text in ("auto", "-1") else count(text)


def _prefill_tokens(text: str) -> str:
    number = count(text)
    return str(min(int(number), MAX_PREFILL_TOKENS)) if number.isdecimal() else number


def _origins(text: str) -> str:
    """Return a JSON list of origins as they are written here, separated by commas."""
    try:
        listed = json.loads(text)
    except ValueError:
        return text
    return ",".join(map(str, listed)) if isinstance(listed, list) else text


RENAMED = (
    Renamed("model_uri", ("model", "model-tag")),
    Renamed("model_name", ("served-model-name",), several=","),
    Renamed("tokenizer_uri", ("tokenizer",)),
    Renamed("local_model_cache", ("download-dir",)),
    Renamed("tensor_parallel", ("tensor-parallel-size", "tp"), difference="on one machine"),
    Renamed("data_parallel", ("data-parallel-size", "dp"), difference="on one machine"),
    Renamed("device_memory_fraction", ("gpu-memory-utilization",)),
    Renamed("kv_dtype", ("kv-cache-dtype",), lambda text: KV_DTYPES.get(text, text)),
    Renamed("page_size", ("block-size",)),
    Renamed(
        "max_prefill_tokens",
        ("max-num-batched-tokens",),
        _prefill_tokens,
        difference=f"the prompt tokens of a step, at most {MAX_PREFILL_TOKENS:,}",
    ),
    Renamed("cors_origins", ("allowed-origins",), _origins),
    Renamed("log_level", ("uvicorn-log-level",), lambda text: LOG_LEVELS.get(text.lower(), text)),
    Renamed("otel_exporter_otlp_endpoint", ("otlp-traces-endpoint",), difference="over HTTP, to port 4318"),
    Renamed("quantization", ("q",)),
)
# The names of these are settings here already; their values may be written as vLLM does.
CONVERTED: Mapping[str, Callable[[str], str | None]] = {
    "dtype": lambda text: DTYPES.get(text, text),
    "max_model_len": _model_len,
    "max_prefill_tokens": count,
}

# These are settings by the same names.
SAME_NAMES = (
    "host",
    "port",
    "api_key",
    "dtype",
    "quantization",
    "max_model_len",
    "max_num_seqs",
    "max_loras",
    "max_lora_rank",
    "chat_template",
    "default_chat_template_kwargs",
    "tool_call_parser",
    "reasoning_parser",
    "hf_token",
)

# Switches for what is always on. Their opposite is refused.
ALWAYS_ON: Mapping[str, str] = {
    "enable-prefix-caching": "prefixes are always cached; a request's `cache_salt` keeps its own apart",
    "enable-chunked-prefill": "long prompts are always computed in chunks, of MAX_PREFILL_TOKENS",
    "enable-auto-tool-choice": "tool calls are always read, in the format that the chat template shows",
    "enable-prompt-tokens-details": "usage always has `prompt_tokens_details`",
    "enable-request-id-headers": "every response has the header `x-request-id`",
    "enable-server-load-tracking": "`/get_load` and `/v1/loads` always answer",
    "async-scheduling": "the next step is always scheduled while one runs",
}
# Switches for what is not there. Their opposite is accepted.
NEVER_ON: Mapping[str, str] = {
    "enable-sleep-mode": "weights are not put to sleep. A catalogue unloads models: `POST /admin/unload/{model}`, "
    "MAX_CACHED_MODELS and HOST_CACHE_BYTES.",
    "skip-tokenizer-init": "every model has its tokenizer. Requests may be token ids, and get them back with "
    "`return_token_ids`.",
    "disable-sliding-window": "layers have the windows that config.json states; set MAX_MODEL_LEN to the window.",
    "headless": "a process of one machine has its own API server. Leave the flag out.",
    "enable-elastic-ep": "the number of devices is chosen at the start. Leave the flag out.",
    "enable-force-include-usage": "a stream has its usage if the request asks for it: "
    '`"stream_options": {"include_usage": true}`.',
    "enable-log-outputs": "prompts and answers are never logged. Leave the flag out.",
    "allow-credentials": "keys are sent in a header and cookies are not used. Leave the flag out.",
    "enable-ssl-refresh": "TLS ends at a proxy before the service, such as Cloud Run's or Caddy.",
    "enable-tokenizer-info-endpoint": "no route shows the tokenizer's configuration. Leave the flag out.",
    "enable-return-routed-experts": "responses do not name experts. Leave the flag out.",
    "enable-prompt-embeds": "prompts are text, images or token ids. Leave the flag out.",
    "language-model-only": "a model that takes images loads all of its weights. Leave the flag out.",
    "tokens-only": "all routes are served. Leave the flag out.",
    "disable-fastapi-docs": "set --page false, which leaves out the other pages too.",
}
# Switches without effect, on or off.
NO_EFFECT: Mapping[str, str] = {
    "trust-remote-code": "no code of a checkpoint is ever executed; its architecture has to be one that Levserve has",
    "enforce-eager": "every step is compiled ahead of time, and its executables are kept for the next start",
    "enable-lora": "adapters are served without it; --max-loras keeps as many in one batch",
    "enable-lora-bias": "an adapter's biases are read from its files",
    "fully-sharded-loras": "adapters lie on the devices as their base does",
    "enable-reasoning": "thinking is separated as the chat template shows it",
    "disable-log-requests": "a request is one line without its prompt",
    "enable-log-requests": "a request is one line; prompts are never logged",
    "enable-log-deltas": "prompts and answers are never logged",
    "disable-log-stats": "statistics are series of /metrics, and not logged",
    "disable-uvicorn-access-log": "a request is one line; LOG_LEVEL=WARNING leaves it out",
    "disable-frontend-multiprocessing": "the API and the engine are one process",
    "disable-custom-all-reduce": "XLA chooses its collectives",
    "disable-cascade-attn": "attention is chosen for the device",
    "disable-async-output-proc": "the next step is always scheduled while one runs",
    "disable-chunked-mm-input": "an image is computed as its model needs it",
    "disable-hybrid-kv-cache-manager": "layers with a window keep pages of their own where that saves memory",
    "disable-mm-preprocessor-cache": "images are cached by their content",
    "disable-nccl-for-dp-synchronization": "XLA chooses its collectives",
    "enable-expert-parallel": "experts are split among the devices of TENSOR_PARALLEL",
    "enable-eplb": "experts are split among the devices of TENSOR_PARALLEL",
    "enable-dbo": "a step is one program",
    "use-v2-block-manager": "pages are always allocated as they are needed",
    "use-tqdm-on-load": "a terminal shows the progress of a start",
    "calculate-kv-scales": "with 8 bits, each token and head has a scale of its own",
    "exclude-tools-when-tool-choice-none": "with `tool_choice: none` no tool is offered to the model",
    "return-tokens-as-token-ids": "a request asks for it: `return_tokens_as_token_ids`",
    "trust-request-chat-template": "a request cannot bring a template",
    "interleave-mm-strings": "images stay where the message has them",
    "skip-mm-profiling": "memory is planned without a trial",
    "worker-use-ray": "all devices of a machine are used by one process",
    "ray-workers-use-nsight": "all devices of a machine are used by one process",
    "multi-step-stream-outputs": "a stream has each token as it is computed",
    "enable-mfu-metrics": "/metrics has the series of docs/reference/metrics.md",
    "show-hidden-metrics-for-version": "/metrics has the series of docs/reference/metrics.md",
    "kv-cache-metrics": "/metrics always has the cache's series",
    "cudagraph-metrics": "/metrics has the series of docs/reference/metrics.md",
    "enable-logging-iteration-details": "LOG_LEVEL=DEBUG logs more",
    "log-error-stack": "LOG_LEVEL=DEBUG logs tracebacks",
    "enable-flash-late-interaction": "scores are computed by the engine",
    "enable-offline-docs": "/docs needs no network",
}
# With a value, and without effect.
IGNORED: Mapping[str, str] = {
    "guided-decoding-backend": "constraints are llguidance's, and always enforced",
    "structured-outputs-config": "constraints are llguidance's, and always enforced",
    "swap-space": "a sequence without room waits, and is not swapped",
    "compilation-config": "steps are compiled ahead of time, for the sizes that MAX_NUM_SEQS needs",
    "optimization-level": "steps are compiled ahead of time, always fully optimized",
    "max-seq-len-to-capture": "executables are for any length",
    "cuda-graph-sizes": "executables are for the sizes that MAX_NUM_SEQS needs",
    "cudagraph-capture-sizes": "executables are for the sizes that MAX_NUM_SEQS needs",
    "max-cudagraph-capture-size": "executables are for the sizes that MAX_NUM_SEQS needs",
    "speculative-config": "SPECULATION says when tokens are drafted, DRAFT_MODEL_URI by what; an MTP layer needs none",
    "speculative-model": "SPECULATION says when tokens are drafted, DRAFT_MODEL_URI by what model",
    "num-speculative-tokens": "SPECULATION says when tokens are drafted; answers are the same",
    "num-lookahead-slots": "SPECULATION says when tokens are drafted; answers are the same",
    "num-scheduler-steps": "every step is scheduled",
    "stream-interval": "a stream has each token as it is computed",
    "max-num-partial-prefills": "prompts share the tokens of a step",
    "max-long-partial-prefills": "prompts share the tokens of a step",
    "long-prefill-token-threshold": "prompts share a step; MAX_STEP_STALL_MS bounds how long they delay others",
    "scheduler-delay-factor": "MAX_STEP_STALL_MS bounds how long prompts delay running sequences",
    "scheduling-policy": "requests are served in order, and those with `priority` before others",
    "preemption-mode": "a sequence without room is computed again later",
    "max-cpu-loras": "LORA_CACHE_BYTES bounds the adapters in the host's memory",
    "lora-dtype": "adapters are computed in the type of their base",
    "lora-extra-vocab-size": "an adapter has its base's vocabulary",
    "tokenizer-mode": "the tokenizer is that of tokenizer.json",
    "config-format": "the format is found from the files",
    "model-impl": "models are Levserve's own, in JAX",
    "task": "what a model does is read from its files",
    "runner": "what a model does is read from its files",
    "convert": "what a model does is read from its files",
    "chat-template-content-format": "the format of contents is found from the template",
    "code-revision": "no code of a checkpoint is ever executed",
    "prefix-caching-hash-algo": "pages are found by SHA-256",
    "attention-backend": "attention is chosen for the device; docs/kernels.md names the kernels",
    "moe-backend": "the products of experts are chosen for the device",
    "kv-cache-memory-bytes": "pages take what DEVICE_MEMORY_FRACTION leaves",
    "num-gpu-blocks-override": "pages take what DEVICE_MEMORY_FRACTION leaves",
    "distributed-executor-backend": "all devices of a machine are used by one process",
    "max-parallel-loading-workers": "reads run in parallel within STREAM_STAGING_BYTES",
    "model-loader-extra-config": "reads run in parallel within STREAM_STAGING_BYTES",
    "ignore-patterns": "only the files that a model needs are downloaded",
    "api-server-count": "the API and the engine are one process",
    "max-log-len": "prompts are never logged",
    "log-config-file": "LOG_LEVEL and LOG_FORMAT set the log",
    "disable-access-log-for-endpoints": "probes and metrics are not logged; LOG_LEVEL=WARNING logs no request",
    "collect-detailed-traces": "a trace has the stages of its sequences",
    "mm-processor-cache-gb": "images are cached by their content",
    "mm-processor-cache-type": "images are cached by their content",
    "mm-encoder-tp-mode": "the encoder of images runs as the model does",
    "mm-encoder-attn-backend": "attention is chosen for the device",
    "video-pruning-rate": "videos are not served",
    "response-role": "the role of an answer is `assistant`",
    "guided-decoding-disable-fallback": "constraints are llguidance's, and always enforced",
    "allowed-methods": "an origin of CORS_ORIGINS may use every method",
    "allowed-headers": "an origin of CORS_ORIGINS may send every header",
    "h11-max-incomplete-event-size": "headers have a fixed limit, and bodies MAX_BODY_BYTES",
    "h11-max-header-count": "headers have a fixed limit",
    "fingerprint-mode": "`system_fingerprint` is a digest of the model and its version",
    "fingerprint-value": "`system_fingerprint` is a digest of the model and its version",
    "performance-mode": "steps are compiled ahead of time, always fully optimized",
    "tokenizer-pool-size": "the tokenizer runs in threads",
    "max-prompt-adapters": "prompt adapters are not served",
    "data-parallel-size-local": "all engines of --data-parallel run on one machine",
    "data-parallel-backend": "the engines of --data-parallel are threads of the process",
}
ONE_HOST = "a model runs on the devices of one machine. Start one instance a machine, behind a load balancer."
TLS = "TLS ends at a proxy before the service, such as Cloud Run's or Caddy. Leave the flag out."
# With a value, and a promise.
REFUSED: Mapping[str, Refused] = {
    "seed": Refused(
        "a service has no seed of its own: how requests meet in a batch would change its tokens. A request's `seed` "
        "repeats its answer."
    ),
    "lora-modules": Refused(
        "adapters are models of a catalogue. Write them into a file for --models-config, each with `name`, `adapter` "
        "and `base` (docs/adapters.md), and set --max-loras."
    ),
    "default-mm-loras": Refused("a request names its adapter as `model`. Leave the flag out."),
    "prompt-adapter": Refused("prompt adapters are not served, only LoRA."),
    "max-logprobs": Refused("a request gets up to 20 alternatives of a token. Leave the flag out.", ("20",)),
    "logprobs-mode": Refused("logprobs are those of the model before sampling. Leave the flag out.", ("raw_logprobs",)),
    "limit-mm-per-prompt": Refused(
        "the images of a request are not counted: MAX_IMAGE_BODY_BYTES and MAX_IMAGE_TOKENS bound them. Leave the "
        "flag out."
    ),
    "mm-processor-kwargs": Refused("images are prepared as the checkpoint's files say; MAX_IMAGE_TOKENS bounds them."),
    "media-io-kwargs": Refused("images are prepared as the checkpoint's files say; MAX_IMAGE_TOKENS bounds them."),
    "allowed-local-media-path": Refused(
        "a request brings its images, or names an https address with ALLOW_REMOTE_IMAGES; it cannot name a file."
    ),
    "allowed-media-domains": Refused(
        "ALLOW_REMOTE_IMAGES allows all public https addresses or none. A proxy can restrict them."
    ),
    "pipeline-parallel-size": Refused(f"layers are not split among devices: use --tensor-parallel; {ONE_HOST}", ("1",)),
    "decode-context-parallel-size": Refused("a context is not split among devices. Leave the flag out.", ("1",)),
    "prefill-context-parallel-size": Refused("a context is not split among devices. Leave the flag out.", ("1",)),
    "nnodes": Refused(ONE_HOST, ("1",)),
    "node-rank": Refused(ONE_HOST, ("0",)),
    "master-addr": Refused(ONE_HOST),
    "master-port": Refused(ONE_HOST),
    "data-parallel-address": Refused(ONE_HOST),
    "data-parallel-rank": Refused(ONE_HOST, ("0",)),
    "data-parallel-rpc-port": Refused(ONE_HOST),
    "kv-transfer-config": Refused("prefill and decode run in one process, and pages are not sent to another."),
    "kv-events-config": Refused("pages are not announced to other processes. Leave the flag out."),
    "kv-offloading-size": Refused("pages stay in the device's memory; --kv-dtype int8 halves them.", ("0",)),
    "kv-offloading-backend": Refused("pages stay in the device's memory; --kv-dtype int8 halves them."),
    "cpu-offload-gb": Refused(
        "weights lie in the device's memory: --quantization int8 halves them; docs/memory.md says what fits where.",
        ("0", "0.0"),
    ),
    "load-format": Refused(
        "weights are safetensors, or pickles that are read without executing anything. `levserve convert` writes "
        "safetensors.",
        ("auto", "safetensors", "pt", "hf", "runai_streamer", "fastsafetensors"),
    ),
    "hf-config-path": Refused("the configuration lies beside the weights. Copy config.json into their folder."),
    "hf-overrides": Refused("the configuration is config.json's. Write the values into a copy of it."),
    "rope-scaling": Refused("the configuration is config.json's. Write `rope_scaling` into a copy of it."),
    "rope-theta": Refused("the configuration is config.json's. Write `rope_theta` into a copy of it."),
    "generation-config": Refused(
        "the checkpoint's generation_config.json holds. --default-temperature and --default-max-tokens go before it, "
        "and `defaults` in MODELS_CONFIG.",
        ("auto",),
    ),
    "override-generation-config": Refused(
        "set --default-temperature and --default-max-tokens, or `defaults` in MODELS_CONFIG."
    ),
    "pooler-config": Refused("pooling is read from the checkpoint's files (1_Pooling/config.json)."),
    "override-pooler-config": Refused("pooling is read from the checkpoint's files (1_Pooling/config.json)."),
    "logits-processors": Refused("no code of others is loaded. `logit_bias` and grammars are served."),
    "logits-processor-pattern": Refused("no code of others is loaded. `logit_bias` and grammars are served."),
    "io-processor-plugin": Refused("no code of others is loaded. Leave the flag out."),
    "tool-parser-plugin": Refused("no code of others is loaded. --tool-call-parser names the formats that are read."),
    "reasoning-parser-plugin": Refused("no code of others is loaded. Leave the flag out."),
    "middleware": Refused("no code of others is loaded. Put a proxy before the service."),
    "worker-cls": Refused("no code of others is loaded. Leave the flag out.", ("auto",)),
    "worker-extension-cls": Refused("no code of others is loaded. Leave the flag out."),
    "tool-server": Refused("the client runs its tools. Leave the flag out."),
    "device": Refused("JAX chooses the device. To choose another, set JAX_PLATFORMS=cpu, cuda or tpu.", ("auto",)),
    "uds": Refused("the service listens on --host and --port. Leave the flag out."),
    "root-path": Refused("have the proxy remove the prefix before it passes a request on. Leave the flag out."),
    "ssl-keyfile": Refused(TLS),
    "ssl-certfile": Refused(TLS),
    "ssl-ca-certs": Refused(TLS),
    "ssl-cert-reqs": Refused(TLS, ("0",)),
    "ssl-ciphers": Refused(TLS),
    "qlora-adapter-name-or-path": Refused("use --adapter-uri, over the base in its own precision."),
}
REVISIONS = {"revision": "model_uri", "tokenizer-revision": "tokenizer_uri"}
# Other spellings, among them vLLM's of one letter or two.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "pipeline-parallel-size": ("pp",),
    "data-parallel-rank": ("dpn",),
    "data-parallel-address": ("dpa",),
    "decode-context-parallel-size": ("dcp",),
    "prefill-context-parallel-size": ("pcp",),
    "enable-expert-parallel": ("ep",),
    "compilation-config": ("O", "cc"),
    "api-server-count": ("asc",),
    "speculative-config": ("sc",),
    "attention-backend": ("ac", "attention-config"),
    "nnodes": ("n",),
    "node-rank": ("r",),
    "pooler-config": ("pooling-config",),
}
SEVERAL = frozenset({"lora-modules", "middleware", "cudagraph-capture-sizes", "cuda-graph-sizes", "logits-processors"})


@dataclass(frozen=True)
class Translation:
    """What flags of vLLM mean: settings, by name, and the flag that each came from; and what is to be said."""

    settings: dict[str, str | None]  # None: unset
    typed: dict[str, str]
    notes: Sequence[str]


@cache
def switches() -> frozenset[str]:
    """Return the flags that stand without a value, each with its opposite."""
    return frozenset(dashed(spelling) for name in (*ALWAYS_ON, *NEVER_ON, *NO_EFFECT) for spelling in _spellings(name))


def flags() -> list[str]:
    """Return every flag of vLLM that is known."""
    known = (*ALWAYS_ON, *NEVER_ON, *NO_EFFECT, *IGNORED, *REFUSED, *REVISIONS)
    names = [spelling for name in known for spelling in _spellings(name)]
    return [dashed(name) for name in (*names, *(name for flag in RENAMED for name in flag.names))]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Let a parser take the flags of vLLM; its help does not show them."""
    for flag in RENAMED:
        _add(parser, flag.names, flag.names[0], several=bool(flag.several))
    for name in (*ALWAYS_ON, *NEVER_ON, *NO_EFFECT, *IGNORED, *REFUSED, *REVISIONS):
        _add(parser, _spellings(name), name, several=name in SEVERAL)


def translate(namespace: Mapping[str, Any]) -> Translation:
    """Return what the flags of vLLM in a namespace mean.

    Raises:
        SettingsError: a flag is refused, or two flags contradict each other.
    """
    given = {name.removeprefix(DEST): value for name, value in namespace.items() if name.startswith(DEST)}
    ours = {name: str(value) for name, value in namespace.items() if name in CONVERTED}
    settings: dict[str, str | None] = {name: CONVERTED[name](text) for name, text in ours.items()}
    typed: dict[str, str] = {}
    for flag in RENAMED:
        value = given.get(flag.names[0])
        if value is None:
            continue
        if flag.several and "model_uri" not in namespace and "model" not in given and _may_hold_model(value):
            reason = f"took {', '.join(value)} as names, and no MODEL is left. Write MODEL before the flags."
            raise SettingsError(dashed(flag.names[0]), reason)
        text = flag.convert(flag.several.join(value) if flag.several else str(value))
        own = settings.get(flag.setting, namespace.get(flag.setting))
        if own is not None and own != text:
            other = typed.get(flag.setting) or _own_name(flag.setting)
            raise SettingsError(dashed(flag.names[0]), f"is {text!r}, but {other} is {own!r}; set one of the two.")
        settings[flag.setting], typed[flag.setting] = text, dashed(flag.names[0])
    notes = [note for name, value in given.items() if (note := _note(name, value))]
    quantization = settings.get("quantization", namespace.get("quantization"))
    if quantization in STATED_QUANTIZATION:
        settings["quantization"] = "none"
        notes.append(
            f"--quantization {quantization}: what the checkpoint's quantization_config states is read from it."
        )
    for flag_name, setting in REVISIONS.items():
        if (revision := given.get(flag_name)) is not None:
            address = settings.get(setting, namespace.get(setting))
            settings[setting] = _with_revision(flag_name, address, revision)
    return Translation(settings, typed, notes)


def _note(name: str, value: Any) -> str:
    """Return what is to be said about a flag, or an empty string.

    Raises:
        SettingsError: the flag is refused.
    """
    flag, text = dashed(name), str(value)
    if name in ALWAYS_ON:
        if text == "false":
            raise SettingsError(f"--no-{name}", f"{ALWAYS_ON[name]}; this cannot be switched off. Leave the flag out.")
        return f"{flag}: {ALWAYS_ON[name]}."
    if name in NEVER_ON and text != "false":
        raise SettingsError(flag, NEVER_ON[name])
    if name in REFUSED and text not in REFUSED[name].harmless:
        raise SettingsError(flag, REFUSED[name].reason)
    without_effect = NO_EFFECT.get(name) or IGNORED.get(name)
    return f"{flag} has no effect: {without_effect}." if without_effect else ""


def _with_revision(flag: str, address: Any, revision: str) -> str:
    """Return an address of the Hub with a revision."""
    text = "" if address is None else str(address)
    other = re.match(r"(?!hf:)[A-Za-z]+://|[/.~]", text)
    if not text or "@" in text or other:
        found = f"{text!r} already has one" if "@" in text else f"{text!r} is none" if text else "none is named"
        reason = f"is the revision of a repository of the Hub, and {found}. Write org/name@{revision}."
        raise SettingsError(f"--{flag}", reason)
    return f"{text}@{revision}"


def _may_hold_model(names: Sequence[str]) -> bool:
    """Return whether a list of names may have swallowed the model that was written behind it."""
    return len(names) > 1 and "/" in names[-1]


def _own_name(setting: str) -> str:
    return "MODEL" if setting == "model_uri" else f"--{setting.replace('_', '-')}"


def _spellings(name: str) -> tuple[str, ...]:
    return (name, *SPELLINGS.get(name, ()))


def dashed(name: str) -> str:
    """Return a flag with its dashes: one before vLLM's names of few letters."""
    return f"-{name}" if len(name) <= 3 and name not in ("uds",) else f"--{name}"


def _add(parser: argparse.ArgumentParser, names: Sequence[str], dest: str, *, several: bool) -> None:
    parser.add_argument(
        *(dashed(name) for name in names),
        dest=DEST + dest,
        nargs="+" if several else None,
        help=argparse.SUPPRESS,
    )
