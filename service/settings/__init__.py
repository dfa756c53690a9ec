"""The settings of the service. A test keeps `.env.example` and docs/reference/settings.md equal to this file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from service.errors import SettingsError

MIN_SIGNING_KEY_CHARS = 32
MAX_IMAGE_BODY_BYTES = 32 * 1024 * 1024
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*?#]+")
# Defaults with LOCAL_DEV. A single slot also means few executables, which makes a first start short.
LOCAL_DEFAULTS = {"host": "127.0.0.1", "log_format": "text", "max_num_seqs": 1}
LOCAL_FOLDER = Path("models")
# The settings that say what to serve.
SOURCES = ("model_uri", "gcs_bucket", "catalogue_uri", "models_config")

type Dtype = Literal["auto", "bfloat16", "float16", "float32"]
type WeightStorage = Literal["none", "int8", "fp8", "int4"]
# By vLLM's names, where it has them; text/formats/families.py has what they mean.
type ToolCallParser = Literal[
    "auto", "none", "apertus", "cohere", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "ernie45",
    "functiongemma", "gemma4", "glm45", "glm47", "gpt_oss", "granite", "granite4", "hermes", "hunyuan_a13b", "json",
    "kimi_k2", "lfm2", "llama3_json", "llama4_json", "llama4_pythonic", "longcat", "mimo", "minimax_m2", "mistral",
    "mistral_args", "nemotron_nano_v2", "nemotron_v3", "olmo3", "openai", "phi4_mini_json", "pythonic", "qwen3_coder",
    "qwen3_json", "qwen3_xml", "seed_oss", "step3p5",
]  # fmt: skip
type ReasoningParser = Literal[
    "auto", "none", "apertus", "cohere_command3", "deepseek_r1", "deepseek_v3", "deepseek_v32", "deepseek_v4",
    "ernie45", "exaone4", "gemma4", "glm45", "granite", "hunyuan_a13b", "kimi_k2", "lfm2", "mimo", "minimax_m2",
    "mistral", "nemotron_v2", "nemotron_v3", "olmo3", "openai_gptoss", "qwen3", "seed_oss", "step3p5",
]  # fmt: skip
type KvDtype = Literal["auto", "bfloat16", "int8", "fp8"]
type SpeculationMode = Literal["auto", "off", "ngram", "draft"]
MODEL_MODES = ("auto", "draft")  # in which a model or a head drafts


class Settings(BaseModel):
    """The effective settings of one process, read once by `cli`. Help and documents show the descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # Where each setting that is not the default comes from, in words, by name.
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    # Models: one, or a catalogue of models that are loaded on demand.
    model_uri: str | None = Field(
        default=None,
        description="The checkpoint: `gs://bucket/prefix`, `hf://org/name[/folder][@revision]` or a path. Unset: the "
        "demo model.",
    )
    model_name: str | None = Field(
        default=None,
        description="The name that clients send as `model`, or several, separated by commas. Unset: the last part of "
        "the checkpoint's address.",
    )
    gcs_bucket: str | None = Field(
        default=None,
        description="A bucket whose folders are models, loaded on demand. With MODEL_NAME, the bucket of that one "
        "model; a slash in a name is a hyphen in the bucket.",
    )
    gcs_model_prefix: str = Field(default="", description="The folder of the models inside GCS_BUCKET.")
    catalogue_uri: str | None = Field(
        default=None,
        description="A folder whose folders are models, loaded on demand: a path, or `gs://…` in place of GCS_BUCKET.",
    )
    models_config: str | None = Field(
        default=None,
        description="A YAML file with the names, addresses and options of models. A path or `gs://…`.",
    )
    models: str | None = Field(
        default=None,
        description="Serve only these models of the catalogue, separated by commas, and load them at the start.",
    )
    catalogue_ttl: float = Field(
        default=60, gt=0, description="Seconds after which the folder or bucket of models is listed again."
    )
    max_cached_models: int = Field(
        default=2,
        ge=1,
        description="Models of a catalogue that are loaded at the same time. Beyond this, models are unloaded least "
        "recently used first, but never while they serve a request.",
    )
    host_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="Host memory, in bytes, that caches the weights of models unloaded from an accelerator, so that "
        "reloading them is one copy. 0 disables the cache.",
    )
    model_load_wait_seconds: float = Field(
        default=60,
        gt=0,
        description="Seconds that a request waits for its model to load before it gets a 503 with the progress.",
    )

    # Switches of earlier services; docs/migrate.md maps all of their settings.
    local_dev: bool = Field(
        default=False,
        description="Defaults for a developer's machine: HOST is 127.0.0.1, LOG_FORMAT is `text`, MAX_NUM_SEQS is 1, "
        "and CATALOGUE_URI is the folder `models` if it exists and no other setting names a model. Explicit settings "
        "win.",
    )
    auto_download_models: bool = Field(
        default=True,
        description="Whether to download checkpoints. `false` refuses any that is neither a path nor in "
        "LOCAL_MODEL_CACHE.",
    )
    hf_token: SecretStr | None = Field(
        default=None, description="The token for gated and private repositories of the Hugging Face Hub."
    )
    enable_metrics: bool = Field(
        default=True, description="Whether PORT serves `/metrics`. METRICS_PORT serves it either way."
    )

    # Limits on requests.
    max_concurrent_requests: int = Field(
        default=64,
        ge=1,
        description="The number of concurrent requests, running and waiting. Any further request gets a 429. One API "
        "key may use all of them until another is refused; then each key gets a share by its weight.",
    )
    max_queue_size: int | None = Field(
        default=None,
        ge=0,
        description="Requests that may wait for a slot or for memory, not counting those that free slots take "
        "immediately. Any further request gets a 429. Unset: limited only by MAX_CONCURRENT_REQUESTS.",
    )
    max_queued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Total prompt tokens of waiting requests. A request that would exceed it gets a 429, unless no "
        "other request waits. Unset: no limit.",
    )
    max_open_body_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024,
        description="Total bytes of the bodies of all open requests; a body without Content-Length counts as "
        "MAX_BODY_BYTES. Any further request gets a 429 without its body being read.",
    )
    queue_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds that a request may wait for its first step. One that waits longer gets a 503 before "
        "anything is computed for it. Unset: limited only by REQUEST_TIMEOUT.",
    )
    early_requests: Literal["refuse", "wait"] = Field(
        default="refuse",
        description="Requests before the model is loaded: `refuse` answers 503 with Retry-After, `wait` queues them.",
    )
    request_timeout: float = Field(
        default=300, gt=0, description="Seconds allowed for one request, including its time in the queue."
    )

    # Checkpoints, the engine, HTTP and observability.
    model_config_uri: str | None = Field(
        default=None,
        description="A Levanter checkpoint's configuration (HF `config.json` or Levanter YAML), if kept elsewhere.",
    )
    tokenizer_uri: str | None = Field(
        default=None, description="The tokenizer, if kept elsewhere: `gs://…`, `hf://…` or a path."
    )
    adapter_uri: str | None = Field(
        default=None,
        description="An adapter (LoRA) that is merged into the model while it is loaded: a folder as PEFT and Levanter "
        "write it, `gs://…`, `hf://…` or a path. See docs/adapters.md.",
    )
    storage_emulator_host: str | None = Field(
        default=None,
        description="The address of a GCS emulator, for tests: `http://127.0.0.1:4443`. Unset: Google Cloud Storage.",
    )
    local_model_cache: Path = Field(
        default=Path("~/.cache/levserve"),
        description="The folder for downloaded checkpoints. On Cloud Run a plain folder is memory: mount a disk.",
    )
    max_cached_checkpoints: int = Field(
        default=2,
        ge=1,
        description="Checkpoints kept in LOCAL_MODEL_CACHE. The least recently used one that is not in use is deleted "
        "first.",
    )
    model_stream: bool = Field(
        default=False,
        description="Stream weights to the device and keep no files. For Cloud Run, whose file system is memory.",
    )
    stream_staging_bytes: int | None = Field(
        default=None,
        ge=64 * 1024 * 1024,
        description="Bytes of host memory that loading may use in addition to the weights. A larger weight is loaded "
        "alone. Unset: 512 MiB beside the largest weight, within an eighth of the host's memory.",
    )
    pull_timeout: float = Field(
        default=1500,
        gt=0,
        description="Seconds to download a checkpoint; less than Cloud Run's GPU start limit of 1800 s.",
    )
    bundle_uri: str | None = Field(
        default=None,
        description="Shared storage for bundles of compiled executables: `gs://…` or a path; `sibling` means "
        "`.levserve-bundles` next to the checkpoint. Bundles are native code: allow writes only to "
        "identities that may also change the image. `sibling` needs BUNDLE_SIGNING_KEY. Unset: LOCAL_MODEL_CACHE "
        "only.",
    )
    bundle_signing_key: SecretStr | None = Field(
        default=None,
        description="Secrets of at least 32 characters, separated by commas. Bundles are signed with the first one and "
        "verified with any of them; a bundle without a valid signature is recompiled. Unset: bundles are not signed.",
    )
    chat_template: str | None = Field(
        default=None,
        description="The chat template in place of the checkpoint's: a path, `gs://…`, or the template itself.",
    )
    default_chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables of the chat template, as a JSON object, for requests that do not set them: "
        '`{"enable_thinking": false}`.',
    )
    tool_call_parser: ToolCallParser = Field(
        default="auto",
        description="The format in which the model writes tool calls, by vLLM's names: `hermes` (also Qwen 2.5 and 3), "
        "`qwen3_coder`, `openai` (gpt-oss), `mistral`, `llama3_json` and others of docs/guides/tools.md. `auto` "
        "detects it: the format that reads what the chat template writes. `none`: tool calls are text.",
    )
    reasoning_parser: ReasoningParser = Field(
        default="auto",
        description="The marks of the model's reasoning, by vLLM's names: `qwen3` and `deepseek_r1` (`<think>`), "
        "`openai_gptoss`, `mistral` and others. `auto` finds them in the chat template. `none`: reasoning is text.",
    )
    dtype: Dtype = Field(
        default="auto",
        description="The dtype of weights and activations. `auto`: the checkpoint's own; on a CPU float32, "
        "except that a model that generates keeps weights in bfloat16 if native code multiplies by them, and rounds "
        "activations for them where the processor has AVX512-BF16. `bfloat16`: there the same. `float32`: the exact "
        "form everywhere.",
    )
    quantization: WeightStorage = Field(
        default="none",
        description="The storage of weights. `none`: as in the checkpoint, in DTYPE, or in int8 if it has a "
        "quantization_config; a GPU keeps its 4 bits. `int8`, `fp8` (float8_e4m3fn): 8 bits with a scale per "
        "row, quantized while the checkpoint is read. Products also quantize activations per token; with `fp8` only on "
        "GPUs since Ada. `int4`: the layers keep the 4 bits of a checkpoint of AWQ, GPTQ or W4A16, or are "
        "quantized to 4 bits in groups of 32 columns; the embedding, the unembedding and experts become int8. See "
        "docs/quantization.md.",
    )
    kv_dtype: KvDtype = Field(
        default="auto",
        description="The dtype of cached keys and values. `auto`: that of activations where a weight "
        "multiplies them. `int8` and `fp8` (float8_e4m3fn): 8 bits with a scale per token and KV head. See "
        "docs/quantization.md.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="Context length in tokens, prompt and completion together. Unset: the model's, if memory allows.",
    )
    max_num_seqs: int = Field(
        default=16, ge=1, le=1024, description="Slots: the number of sequences that run at the same time."
    )
    max_loras: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Slots on the device for adapters (LoRA), which requests of one batch use side by side. 0: none, "
        "and each adapter is merged into a model of its own. See docs/adapters.md.",
    )
    max_lora_rank: int = Field(
        default=16, ge=1, le=512, description="The largest rank of an adapter in a slot. Each slot has room for it."
    )
    lora_cache_bytes: int = Field(
        default=1024**3,
        ge=1,
        description="Host memory, in bytes, for adapters of slots that are read once and kept, the most recently used.",
    )
    max_prefill_tokens: int | None = Field(
        default=None,
        ge=16,
        le=16384,
        description="The most prompt tokens per step. Longer prompts are prefilled in chunks. For an encoder, the "
        "total tokens of a step. Unset: 2048 for a generative model on an H100, H200, RTX PRO 6000 or TPU v6e, "
        "otherwise 512. Gemma 3 with images needs 320, Gemma 4 up to 384.",
    )
    max_step_stall_ms: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="How long prompts may hold up each token of running sequences, in milliseconds: a step computes as "
        "much of prompts as takes so long on this device, but at least 64 tokens, and an image of Gemma 3 or 4 whole. "
        "Unset: as long as two decode steps.",
    )
    speculation: SpeculationMode = Field(
        default="off",
        description="Several tokens a step: tokens that are foreseen are drafted, and verified all at once, with the "
        "same answers. `auto`: where it is faster, by how often drafts of the text were right and by what steps take, "
        "measured as they run. `ngram`: wherever any are known. `draft`: wherever DRAFT_MODEL_URI's model can draft, "
        "or the layer that predicts further tokens (MTP) of the model's own checkpoint. "
        "`off`: never. See docs/guides/speculation.md.",
    )
    draft_model_uri: str | None = Field(
        default=None,
        description="A small model with the tokenizer of the served one, or an EAGLE-3 head that was trained for it, "
        "which drafts for it on the same devices with SPECULATION `draft` or `auto`: `gs://…`, `hf://…` or a path.",
    )
    page_size: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Token positions per KV page. Unset: 16; on a TPU up to 256, so that the page tables fit.",
    )
    embedding_cache_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Host memory, in bytes, for an LRU cache of embeddings by text; 0 disables the cache.",
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        description="Devices that share each step. Unset: one on a CPU, otherwise the largest number that divides "
        "heads and MLP.",
    )
    data_parallel: PositiveInt | Literal["auto"] = Field(
        default=1,
        description="Engines with all weights each, on equal parts of the host's devices, behind one port. auto: as "
        "many as still hold half of the tokens that one engine on all devices would; on a CPU, one.",
    )
    device_memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The fraction of device memory for weights, KV pages and workspace; on a GPU, for XLA's pool. "
        "Unset: 0.9; on a CPU, 0.5.",
    )
    default_max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Completion tokens if a request sets no limit. Unset: 16; for chats, the rest of the context.",
    )
    default_temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Temperature if a request sets none. Unset: the value in generation_config.json, otherwise 1.0.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="The largest accepted request body, in bytes. A larger one gets a 413 without being read.",
    )
    max_audio_bytes: int = Field(
        default=25 * 1024 * 1024,
        ge=1024,
        description="The largest accepted recording, in bytes. A larger one gets a 413. It is held in memory, and "
        "counts for MAX_OPEN_BODY_BYTES; so do its samples later, 2 MB a minute.",
    )
    max_image_body_bytes: int | None = Field(
        default=None,
        ge=1024,
        description="The largest accepted body of a chat with images, in bytes, if a model takes images and the body "
        "states its Content-Length; without its images it may have MAX_BODY_BYTES. A larger one gets a 413 without "
        "being read. Unset: 32 MiB, but at least MAX_BODY_BYTES and at most MAX_OPEN_BODY_BYTES.",
    )
    max_image_tokens: int | None = Field(
        default=None,
        ge=16,
        description="The most tokens of an image. A larger image is scaled down, as the model's own processor does it "
        "for such a bound, or cut into fewer tiles. Unset: 1,024, which is an image of 1,024 x 1,024 pixels in "
        "Qwen3-VL; for Gemma 4 as many as its config.json says, 280; for images that are cut into tiles, as many as "
        "the model's files allow. An image of Gemma 3 always has 256.",
    )
    allow_remote_images: bool = Field(
        default=False,
        description="Whether images may be named by an https address, which the service then fetches from public "
        "addresses, without following redirects.",
    )
    remote_image_timeout: float = Field(
        default=5.0, gt=0, allow_inf_nan=False, description="Seconds for fetching one remote image."
    )
    max_remote_image_bytes: int = Field(
        default=5 * 1024 * 1024, ge=1024, description="The largest remote image, in bytes."
    )
    batch_uri: str | None = Field(
        default=None,
        description="Storage for uploaded files and batches: `gs://…` or a path, which instances may share; `off` "
        "disables `/v1/files` and `/v1/batches`. Unset: a folder in LOCAL_MODEL_CACHE; with MODEL_STREAM, `off`.",
    )
    batch_file_bytes: int = Field(
        default=200 * 1024 * 1024,
        ge=1024,
        description="The largest accepted file upload, in bytes. A larger one gets a 413.",
    )
    batch_total_bytes: int = Field(
        default=2 * 1024 * 1024 * 1024,
        ge=1024,
        description="Total bytes of files and batches at BATCH_URI. Beyond this, uploads get a 413.",
    )
    state_uri: str | None = Field(
        default=None,
        description="Storage for responses that `previous_response_id` continues: `gs://…` or a path, which instances "
        "may share; `off` stores none. Unset: a folder in LOCAL_MODEL_CACHE; with MODEL_STREAM, `off`.",
    )
    state_ttl: float = Field(
        default=30 * 24 * 3600,
        gt=0,
        description="Seconds after which a stored response is deleted.",
    )
    state_total_bytes: int = Field(
        default=2 * 1024 * 1024 * 1024,
        ge=1024,
        description="Approximate total bytes of responses at STATE_URI. Beyond this, the oldest ones are deleted.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="API keys, separated by commas, required on all routes except health and the pages. If "
        "API_KEY_FILE is unset too, no key is required.",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="A YAML or JSON file of more API keys, such as a mounted secret: a list of secrets, or of "
        "`{name, secret, weight, can_prioritize}`. Keys share the device by weight; logs show the name. The file is "
        "reloaded when it changes; an invalid one is ignored.",
    )
    admin_api_key: SecretStr | None = Field(
        default=None,
        description="The key for the routes under /admin, sent as `Authorization: Bearer …`. Unset: no such routes.",
    )
    drain_seconds: float = Field(
        default=8,
        ge=0,
        description="Seconds that running requests may take to finish after SIGTERM. Cloud Run kills the process after "
        "10.",
    )
    watchdog_seconds: float = Field(
        default=120,
        gt=0,
        description="Seconds after which a device step that has not returned ends the process.",
    )
    host: str = Field(default="0.0.0.0", description="The address to listen on.")
    port: int = Field(
        default=8080, ge=0, le=65535, description="The port to listen on; 0 picks a free one and logs it."
    )
    aip_http_port: int | None = Field(
        default=None, ge=1, le=65535, description="The port unless PORT is set; Vertex AI sets it."
    )
    aip_health_route: str | None = Field(
        default=None, pattern=r"^/[^?#]+$", description="Another path of `/health/ready`; Vertex AI sets it."
    )
    aip_predict_route: str | None = Field(
        default=None,
        pattern=r"^/[^?#]+$",
        description="Another path of `/invocations`, which answers any body of OpenAI's; Vertex AI sets it.",
    )
    ready_when: Literal["answering", "complete"] = Field(
        default="answering",
        description="When `/health/ready` returns 200: once requests are answered (`answering`), even while optional "
        "executables are still compiling, or once the start is `complete`.",
    )
    strict_fields: bool = Field(
        default=False,
        description="Whether to refuse requests with fields that have no effect here. Otherwise they are served, and "
        "the header `x-levserve-ignored` names such fields.",
    )
    allowed_hosts: str | None = Field(
        default=None,
        description="Names, separated by commas, that the service answers to besides `localhost` while it listens on "
        "only its own machine and has no API_KEY; `.example.com` is all names that end so, `*` any. Such a service "
        "refuses other names, under which pages in a browser could reach it.",
    )
    cors_origins: str | None = Field(
        default=None,
        description="Origins, separated by commas, whose pages may use the API from a browser, such as "
        "`https://chat.example.com`; `*` allows any. Unset: only the service's own pages.",
    )
    page: bool = Field(
        default=True,
        description="Whether to serve a chat page at `/`, a page to compare texts at `/vectors`, one to transcribe "
        "recordings at `/hear`, and the API documentation at `/docs`. The pages need no key; they use the API with the "
        "key that the visitor enters.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="The lowest level that is logged. DEBUG adds tracebacks to start errors. Prompts are never logged.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="`json` for Cloud Logging, `text` for people; `auto` is text on a terminal and JSON otherwise.",
    )
    google_cloud_project: str | None = Field(
        default=None,
        description="The project of the service. If set, traces in log lines are links in Cloud Logging.",
    )
    k_service: str | None = Field(
        default=None, description="The service's name in Error Reporting; Cloud Run sets it. Unset: `levserve`."
    )
    k_revision: str | None = Field(
        default=None, description="The service's version in Error Reporting; Cloud Run sets it."
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        default=None,
        description="The OpenTelemetry collector that receives a trace of each request over HTTP, such as "
        "`http://localhost:4318`. Needs the extra `otel`; OpenTelemetry reads its other `OTEL_*` variables itself. "
        "Unset: no traces.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="A second port that serves `/metrics` without a key, for scrapers that cannot send one. Do not "
        "expose it publicly. Unset: no such port; 0 picks a free one and logs it.",
    )
    metrics_compat: Literal["none", "vllm"] = Field(
        default="none",
        description="`vllm` additionally exports the series that vLLM also has under its names (`vllm:…`), which "
        "gateway endpoint pickers and dashboards read by default.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _in_any_case(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept a value of a few choices in any case, as `LOG_LEVEL=debug`."""
        if not isinstance(value, str) or info.field_name is None:
            return value
        choices = choices_of(cls.model_fields[info.field_name].annotation)
        return {choice.lower(): choice for choice in choices}.get(value.lower(), value)

    @field_validator("default_chat_template_kwargs", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        """Accept an object as JSON."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise SettingsError("DEFAULT_CHAT_TEMPLATE_KWARGS", f"is not JSON: {error}.") from error

    @model_validator(mode="before")
    @classmethod
    def _local_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not _is_true(given.get("local_dev", False)):
            return given
        catalogue = {"catalogue_uri": str(LOCAL_FOLDER)} if LOCAL_FOLDER.is_dir() else {}
        if any(given.get(name) for name in (*SOURCES, "model_name")):
            catalogue = {}
        return LOCAL_DEFAULTS | catalogue | given

    @model_validator(mode="before")
    @classmethod
    def _port_of_the_platform(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("port") is not None or not given.get("aip_http_port"):
            return given
        return {**given, "port": given["aip_http_port"]}

    @model_validator(mode="after")
    def _check_models(self) -> "Settings":
        if self.model_uri and self.gcs_bucket:
            raise SettingsError("MODEL_URI", "contradicts GCS_BUCKET; set one of the two.")
        if self.gcs_model_prefix and not self.gcs_bucket:
            raise SettingsError("GCS_MODEL_PREFIX", "needs GCS_BUCKET.")
        if self.catalogue_uri and self.gcs_bucket:
            raise SettingsError("CATALOGUE_URI", "contradicts GCS_BUCKET; set one of the two.")
        if self.catalogue_uri is not None or self.models_config is not None:
            for variable, value in (("MODEL_URI", self.model_uri), ("MODEL_NAME", self.model_name)):
                if value:
                    raise SettingsError(variable, "names a single model, but CATALOGUE_URI or MODELS_CONFIG several.")
        if self.adapter_uri and self.has_catalogue:
            reason = "is merged into a single model. In MODELS_CONFIG, give a model an 'adapter'."
            raise SettingsError("ADAPTER_URI", reason)
        if self.draft_model_uri and self.has_catalogue:
            raise SettingsError("DRAFT_MODEL_URI", "drafts for a single model, and there are several. Unset it.")
        if self.draft_model_uri and self.speculation not in MODEL_MODES:
            reason = f"is set, and with SPECULATION={self.speculation} it drafts nothing: set that to draft or auto."
            raise SettingsError("DRAFT_MODEL_URI", reason)
        if self.speculation == "draft" and self.has_catalogue:
            raise SettingsError("SPECULATION", "is draft, for which there is a single model. Set it to auto.")
        if self.models and not self.has_catalogue:
            raise SettingsError(
                "MODELS", "needs a catalogue: GCS_BUCKET without MODEL_NAME, CATALOGUE_URI, or MODELS_CONFIG."
            )
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> "Settings":
        if self.metrics_port and self.metrics_port == self.port:
            raise SettingsError("METRICS_PORT", f"is the same as PORT ({self.port}). Choose another port.")
        for name in ("API_KEY", "ADMIN_API_KEY", "BUNDLE_SIGNING_KEY"):
            secret = getattr(self, name.lower())
            if secret is not None and not _keys(secret):  # treating it as unset would disable what it should protect
                raise SettingsError(name, "is blank. Unset it to disable authentication.")
        for origin in self.allowed_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                reason = f"{origin!r} is not an origin: a scheme, a host and optionally a port, without a path."
                raise SettingsError("CORS_ORIGINS", reason)
        if any(len(key) < MIN_SIGNING_KEY_CHARS for key in self.bundle_signing_keys):
            reason = f"has a key of fewer than {MIN_SIGNING_KEY_CHARS} characters. Create one: `openssl rand -hex 32`."
            raise SettingsError("BUNDLE_SIGNING_KEY", reason)
        if self.bundle_uri == "sibling" and not self.bundle_signing_keys:
            reason = "'sibling' is writable by authors of checkpoints, so it needs BUNDLE_SIGNING_KEY."
            raise SettingsError("BUNDLE_URI", reason)
        if self.model_stream and not self.auto_download_models:
            reason = "is false, but MODEL_STREAM keeps no files, so every start has to download them."
            raise SettingsError("AUTO_DOWNLOAD_MODELS", reason)
        if self.max_open_body_bytes < self.max_body_bytes:
            reason = f"is {self.max_open_body_bytes}, less than one body of MAX_BODY_BYTES ({self.max_body_bytes})."
            raise SettingsError("MAX_OPEN_BODY_BYTES", reason)
        if not self.max_body_bytes <= self.image_body_bytes <= self.max_open_body_bytes:
            reason = f"is {self.image_body_bytes}; it must be from MAX_BODY_BYTES ({self.max_body_bytes}) to "
            reason += f"MAX_OPEN_BODY_BYTES ({self.max_open_body_bytes})."
            raise SettingsError("MAX_IMAGE_BODY_BYTES", reason)
        if self.max_concurrent_requests < self.max_num_seqs:
            raise SettingsError(
                "MAX_CONCURRENT_REQUESTS",
                f"is {self.max_concurrent_requests}, fewer than the {self.max_num_seqs} slots of MAX_NUM_SEQS.",
            )
        return self

    def source_of(self, name: str) -> str:
        """Return where a setting was set, such as "HOST in the environment"; empty for a default."""
        return self._sources.get(name, "")

    @property
    def path_aliases(self) -> dict[str, str]:
        """The routes of this service by the paths that a platform has given to them."""
        given = {self.aip_health_route: "/health/ready", self.aip_predict_route: "/invocations"}
        return {path.rstrip("/"): route for path, route in given.items() if path}

    @property
    def image_body_bytes(self) -> int:
        """The largest body of a chat with images."""
        if self.max_image_body_bytes is not None:
            return self.max_image_body_bytes
        return max(self.max_body_bytes, min(MAX_IMAGE_BODY_BYTES, self.max_open_body_bytes))

    @property
    def num_slots(self) -> int:
        """The sequences of a model that run at the same time, in all engines that DATA_PARALLEL states; `auto` is 1."""
        return self.max_num_seqs * (1 if self.data_parallel == "auto" else self.data_parallel)

    @property
    def has_catalogue(self) -> bool:
        """Whether models are loaded on demand; otherwise the process serves a single one."""
        is_bucket = self.gcs_bucket is not None and not self.model_names
        return is_bucket or self.catalogue_uri is not None or self.models_config is not None

    @property
    def checkpoint_uri(self) -> str | None:
        """The address of the single checkpoint, from MODEL_URI or GCS_BUCKET; None means the demo model."""
        if not self.gcs_bucket or not self.model_names:
            return self.model_uri
        return f"{self._bucket_uri}/{self.model_names[0].replace('/', '-')}"

    @property
    def catalogue_address(self) -> str | None:
        """The folder of models; None if MODELS_CONFIG lists all of them."""
        return self.catalogue_uri if self.gcs_bucket is None else self._bucket_uri

    @property
    def model_names(self) -> tuple[str, ...]:
        """The distinct names in MODEL_NAME, of which the first is the model's id; empty if unset."""
        return _names(self.model_name)

    @property
    def selected_models(self) -> tuple[str, ...]:
        """The distinct names in MODELS; empty to serve the whole catalogue."""
        return _names(self.models)

    @property
    def _bucket_uri(self) -> str:
        return "/".join(part for part in (f"gs://{self.gcs_bucket}", self.gcs_model_prefix.strip("/")) if part)

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys in API_KEY; empty if it is unset."""
        return _keys(self.api_key)

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names in ALLOWED_HOSTS."""
        return tuple(name for part in (self.allowed_hosts or "").split(",") if (name := part.strip()))

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins in CORS_ORIGINS."""
        return tuple(origin for part in (self.cors_origins or "").split(",") if (origin := part.strip()))

    @property
    def bundle_signing_keys(self) -> tuple[str, ...]:
        """The keys in BUNDLE_SIGNING_KEY; empty if bundles are not signed."""
        return _keys(self.bundle_signing_key)

    @property
    def admin_api_keys(self) -> tuple[str, ...]:
        """The keys in ADMIN_API_KEY; empty if there are no /admin routes."""
        return _keys(self.admin_api_key)


def choices_of(annotation: Any) -> tuple[str, ...]:
    """Return the values that a setting of this type may have, if they are few."""
    kind = getattr(annotation, "__value__", annotation)
    return tuple(str(value) for value in get_args(kind)) if get_origin(kind) is Literal else ()


def _keys(secret: SecretStr | None) -> tuple[str, ...]:
    if secret is None:
        return ()
    return tuple(key for part in secret.get_secret_value().split(",") if (key := part.strip()))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))


def _is_true(value: Any) -> bool:
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:  # the field's own validation reports it
        return False
