"""Every setting of the service. A test keeps `.env.example` and the table in README.md equal to this file."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from service.errors import SettingsError
from service.settings.waiting import WaitingSettings

MIN_SIGNING_KEY_CHARS = 32
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*?#]+")

type Dtype = Literal["auto", "bfloat16", "float16", "float32"]
type WeightStorage = Literal["none", "int8", "fp8"]
type KvDtype = Literal["auto", "bfloat16", "int8", "fp8"]


class Settings(WaitingSettings):
    """The effective settings of one process, read once, in `cli`. Help and documents show the descriptions."""

    model_config_uri: str | None = Field(
        default=None,
        description="A Levanter checkpoint's configuration (HF `config.json` or Levanter YAML), if kept elsewhere.",
    )
    tokenizer_uri: str | None = Field(
        default=None, description="The tokenizer, if kept elsewhere: `gs://…`, `hf://…` or a path."
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
        description="Checkpoints kept in LOCAL_MODEL_CACHE. The least recently used goes first; one in use stays.",
    )
    model_stream: bool = Field(
        default=False,
        description="Stream weights to the device and keep no files. For Cloud Run, whose file system is memory.",
    )
    stream_staging_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=64 * 1024 * 1024,
        description="Bytes of host memory that loading may use besides the weights. A larger weight is loaded alone.",
    )
    pull_timeout: float = Field(
        default=1500,
        gt=0,
        description="Seconds to download a checkpoint; less than Cloud Run's GPU start limit of 1800 s.",
    )
    bundle_uri: str | None = Field(
        default=None,
        description="A shared place for bundles, the compiled executables: `gs://…` or a path; `sibling` means "
        "`.levserve-bundles` next to the checkpoint. Bundles are native code: allow writes only to "
        "identities that may also change the image. `sibling` needs BUNDLE_SIGNING_KEY. Unset: LOCAL_MODEL_CACHE "
        "only.",
    )
    bundle_signing_key: SecretStr | None = Field(
        default=None,
        description="Secrets of 32 characters or more, separated by commas, with which bundles are signed: by the "
        "first one, and any of them verifies. A bundle without a valid signature is compiled anew. Unset: none is "
        "signed.",
    )
    tool_call_parser: Literal[
        "auto", "deepseek_v3", "deepseek_v31", "hermes", "json", "llama3_json", "mistral", "mistral_args", "qwen3_coder"
    ] = Field(
        default="auto",
        description="How the model writes tool calls, by vLLM's names: `hermes` (Qwen 2.5 and 3 too), `llama3_json`, "
        "`mistral`, `mistral_args`, `qwen3_coder`, `deepseek_v3` (R1 too), `deepseek_v31` or `json`. `auto`: as the "
        "chat template does.",
    )
    dtype: Dtype = Field(
        default="auto",
        description="The dtype of weights and activations. `auto`: the checkpoint's own; on a CPU activations are "
        "float32, and so are weights, unless they are bfloat16 and native code multiplies by them as they are.",
    )
    quantization: WeightStorage = Field(
        default="none",
        description="The storage of weights. `none`: as in the checkpoint, in DTYPE, or in int8 if it has a "
        "quantization_config. `int8`, `fp8` (float8_e4m3fn): in 8 bits with a scale for each row, quantized while the "
        "checkpoint is read; products quantize each token as well, of `fp8` on GPUs from Ada on. See "
        "docs/quantization.md.",
    )
    kv_dtype: KvDtype = Field(
        default="auto",
        description="The dtype of cached keys and values. `auto`: that of activations. `int8` and `fp8` "
        "(float8_e4m3fn): in 8 bits with a scale for each token and KV head. See "
        "docs/quantization.md.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="Context length in tokens, prompt and completion together. Unset: the model's, as memory allows.",
    )
    max_num_seqs: int = Field(
        default=16, ge=1, le=1024, description="Slots: the number of sequences that run at the same time."
    )
    max_prefill_tokens: int = Field(
        default=512,
        ge=16,
        le=16384,
        description="Prompt tokens per prefill step. Longer prompts are prefilled in chunks, between decode steps. For "
        "an encoder, the tokens of all texts of a step.",
    )
    page_size: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Token positions per KV page. Unset: 16; on a TPU more, up to 256, until the page tables fit.",
    )
    embedding_cache_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Host memory for the vectors of texts that were encoded before, in bytes, per process; 0 for none.",
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        description="Devices that share each step. Unset: one on a CPU, otherwise as many as divide heads and MLP.",
    )
    device_memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The fraction of device memory for weights, KV pages and workspace; of a GPU's, for XLA's pool. "
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
        description="The largest accepted request body in bytes. A larger one gets a 413 without being read.",
    )
    batch_uri: str | None = Field(
        default=None,
        description="The place of uploaded files and of batches: `gs://…` or a path, which instances may share; "
        "`off`: neither `/v1/files` nor `/v1/batches`. Unset: a folder in LOCAL_MODEL_CACHE; with MODEL_STREAM, `off`.",
    )
    batch_file_bytes: int = Field(
        default=200 * 1024 * 1024,
        ge=1024,
        description="The largest uploaded file in bytes. A larger one gets a 413.",
    )
    batch_total_bytes: int = Field(
        default=2 * 1024 * 1024 * 1024,
        ge=1024,
        description="Bytes that files and batches may take at BATCH_URI. Above it, uploads get a 413.",
    )
    state_uri: str | None = Field(
        default=None,
        description="The place of responses that `previous_response_id` continues: `gs://…` or a path, which instances "
        "may share; `off`: none are kept. Unset: a folder in LOCAL_MODEL_CACHE; with MODEL_STREAM, `off`.",
    )
    state_ttl: float = Field(
        default=30 * 24 * 3600,
        gt=0,
        description="Seconds for which a response is kept.",
    )
    state_total_bytes: int = Field(
        default=2 * 1024 * 1024 * 1024,
        ge=1024,
        description="Bytes that responses may take at STATE_URI, about. Above it, the oldest ones are deleted.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="Keys accepted on all routes except health, separated by commas. Neither this nor API_KEY_FILE: no "
        "key is required.",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="A YAML or JSON file of more such keys, such as a mounted secret: a list of secrets, or of "
        "`{name, secret, weight, can_prioritize}`. Keys share the device by weight; the log has the name. Read again "
        "when it changes; a bad new file changes nothing.",
    )
    admin_api_key: SecretStr | None = Field(
        default=None,
        description="The key for the routes under /admin, sent as `Authorization: Bearer …`. Unset: they do not exist.",
    )
    drain_seconds: float = Field(
        default=8,
        ge=0,
        description="Seconds that running requests have to finish after SIGTERM. Cloud Run kills the process after 10.",
    )
    watchdog_seconds: float = Field(
        default=120,
        gt=0,
        description="Seconds after which a step of the device that has not come back ends the process.",
    )
    host: str = Field(default="0.0.0.0", description="The address to listen on.")
    port: int = Field(
        default=8080, ge=0, le=65535, description="The port to listen on; 0 picks a free one and logs it."
    )
    ready_when: Literal["answering", "complete"] = Field(
        default="answering",
        description="When `/health/ready` is 200: once requests are `answering`, while executables that none of them "
        "has to wait for are still compiled; or once the start is `complete`.",
    )
    strict_fields: bool = Field(
        default=False,
        description="Whether a request with a field that has no effect here is refused. Otherwise it is answered, and "
        "the header `x-levserve-ignored` names such fields.",
    )
    cors_origins: str | None = Field(
        default=None,
        description="Origins whose pages may use the API from a browser, separated by commas, such as "
        "`https://chat.example.com`; `*` is any. Unset: none but the service's own pages.",
    )
    page: bool = Field(
        default=True,
        description="Whether `/` is a page to chat with the model, `/vectors` one to compare texts, and `/docs` one "
        "that describes the API. They are open to anyone and use the API with the key that the visitor enters.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="The lowest level that is logged. DEBUG adds tracebacks to start errors. Prompts are never logged.",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="`json` for Cloud Logging, `text` for people; `auto` is text on a terminal, JSON otherwise.",
    )
    google_cloud_project: str | None = Field(
        default=None,
        description="The project of the service. If set, the trace of a log line is a link in Cloud Logging.",
    )
    k_service: str | None = Field(
        default=None, description="The service's name in Error Reporting; Cloud Run sets it. Unset: `levserve`."
    )
    k_revision: str | None = Field(
        default=None, description="The service's version in Error Reporting; Cloud Run sets it."
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        default=None,
        description="The OpenTelemetry collector that gets a trace of each request over HTTP: `http://localhost:4318`. "
        "Needs the extra `otel`; other `OTEL_*` variables are OpenTelemetry's own. Unset: no traces.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="A second port that answers `/metrics` without a key, for scrapers that cannot send one. Do not "
        "publish it. Unset: none; 0 picks a free one and logs it.",
    )
    metrics_compat: Literal["none", "vllm"] = Field(
        default="none",
        description="`vllm` shows the series that vLLM has too a second time, under its names (`vllm:…`): those that "
        "endpoint pickers of gateways and dashboards read by default.",
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> "Settings":
        if self.metrics_port and self.metrics_port == self.port:
            raise SettingsError("METRICS_PORT", f"is PORT ({self.port}); it needs another one.")
        for name in ("API_KEY", "ADMIN_API_KEY", "BUNDLE_SIGNING_KEY"):
            secret = getattr(self, name.lower())
            if secret is not None and not _keys(secret):  # as if it were unset, it would open what it is to close
                raise SettingsError(name, "has no key in it, only blanks or commas. Unset it to need no key.")
        for origin in self.allowed_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                reason = (
                    f"{origin!r} is no origin. One is a scheme and a host, and a port if it has one, without a path."
                )
                raise SettingsError("CORS_ORIGINS", reason)
        if any(len(key) < MIN_SIGNING_KEY_CHARS for key in self.bundle_signing_keys):
            reason = f"has a key of fewer than {MIN_SIGNING_KEY_CHARS} characters. `openssl rand -hex 32` makes one."
            raise SettingsError("BUNDLE_SIGNING_KEY", reason)
        if self.bundle_uri == "sibling" and not self.bundle_signing_keys:
            reason = "'sibling' is where the authors of checkpoints may write, so it needs BUNDLE_SIGNING_KEY."
            raise SettingsError("BUNDLE_URI", reason)
        if self.model_stream and not self.auto_download_models:
            reason = "is false, and MODEL_STREAM keeps no files, so each start would have to fetch them."
            raise SettingsError("AUTO_DOWNLOAD_MODELS", reason)
        if self.max_open_body_bytes < self.max_body_bytes:
            reason = f"is {self.max_open_body_bytes}, less than one body of MAX_BODY_BYTES ({self.max_body_bytes})."
            raise SettingsError("MAX_OPEN_BODY_BYTES", reason)
        if self.max_concurrent_requests < self.max_num_seqs:
            raise SettingsError(
                "MAX_CONCURRENT_REQUESTS",
                f"is {self.max_concurrent_requests}, fewer than the {self.max_num_seqs} slots of MAX_NUM_SEQS.",
            )
        return self

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys of API_KEY; empty if no key is required."""
        return _keys(self.api_key)

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins of CORS_ORIGINS; empty if no other page may use the API."""
        return tuple(origin for part in (self.cors_origins or "").split(",") if (origin := part.strip()))

    @property
    def bundle_signing_keys(self) -> tuple[str, ...]:
        """The keys of BUNDLE_SIGNING_KEY; empty if bundles are not signed."""
        return _keys(self.bundle_signing_key)

    @property
    def admin_api_keys(self) -> tuple[str, ...]:
        """The keys of ADMIN_API_KEY; empty if the /admin routes do not exist."""
        return _keys(self.admin_api_key)


def _keys(secret: SecretStr | None) -> tuple[str, ...]:
    if secret is None:
        return ()
    return tuple(key for part in secret.get_secret_value().split(",") if (key := part.strip()))
