"""What `vllm serve` takes, typed behind `levserve serve`: it works, or is answered rightly, and never guessed at."""

import pytest

from service import cli
from service.command_line import vllm
from service.command_line.messages import Messages
from service.errors import SettingsError
from service.settings import Settings

# A value that each flag could have in vLLM, where "x" would not do.
VALUES = {"dtype": "half", "kv-cache-dtype": "fp8_e4m3", "block-size": "32", "uvicorn-log-level": "debug"}
VALUES |= {"tensor-parallel-size": "2", "tp": "2", "gpu-memory-utilization": "0.5", "max-num-batched-tokens": "8192"}
VALUES |= {"q": "fp8", "allowed-origins": '["*"]', "model": "/m", "model-tag": "/m", "otlp-traces-endpoint": "http://c"}

PARSER = cli.build_parser("serve")


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def read(line: str | list[str], capsys) -> tuple[Settings, str]:
    """The settings of a command line, and what is printed about it."""
    words = ["serve", *(line.split() if isinstance(line, str) else line)]
    parsed, unknown = PARSER.parse_known_args(words)
    assert unknown == []
    settings, _ = cli.read_settings(vars(parsed), Messages("serve", is_json=False))
    return settings, capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("org/name --revision v1", {"model_uri": "hf://org/name@v1"}),
        ("--model org/name --tokenizer org/other", {"model_uri": "hf://org/name", "tokenizer_uri": "hf://org/other"}),
        ("/m --served-model-name a b", {"model_name": "a,b"}),
        ("/m --served_model_name=a", {"model_name": "a"}),
        ("/m -tp 2 --gpu-memory-utilization 0.5", {"tensor_parallel": 2, "device_memory_fraction": 0.5}),
        ("/m --max-model-len 32k", {"max_model_len": 32_000}),
        ("/m --max_model_len 32K", {"max_model_len": 32_768}),
        ("/m --max-model-len auto", {"max_model_len": None}),
        ("/m --max-num-batched-tokens 65536", {"max_prefill_tokens": 16_384}),
        ("/m --dtype half --kv-cache-dtype fp8_e4m3", {"dtype": "float16", "kv_dtype": "fp8"}),
        ("/m --quantization awq", {"quantization": "none"}),
        ("/m -q fp8", {"quantization": "fp8"}),
        ("/m --uvicorn-log-level trace", {"log_level": "DEBUG"}),
        (["/m", "--allowed-origins", '["https://a.b", "https://c.d"]'], {"cors_origins": "https://a.b,https://c.d"}),
        ("/m --download-dir /c --block-size 32", {"page_size": 32}),
        ("/m --model-stream --page false", {"model_stream": True, "page": False}),
        ("--no-page /m", {"page": False, "model_uri": "/m"}),
        ("--strict-fields /m", {"strict_fields": True, "model_uri": "/m"}),
        ("--enable-prefix-caching /m --enforce_eager -O3 --trust-remote-code", {"model_uri": "/m"}),
        (["/m", "--compilation-config.mode", "3", "--speculative-config", "{}"], {"model_uri": "/m"}),
        ("/m -pp 1 --max-logprobs 20", {"model_uri": "/m"}),
    ],
)
def test_a_flag_of_vllm_sets_what_it_means(line, expected, capsys):
    settings, _ = read(line, capsys)
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/m --seed 0", "--seed: .*A request's `seed`"),
        ("/m --lora-modules a=/b c=/d", "--lora-modules: .*--models-config"),
        ("/m --no-enable-prefix-caching", "--no-enable-prefix-caching: .*cannot be switched off"),
        ("/m --pipeline-parallel-size 2", "--pipeline-parallel-size: "),
        ("/m --ssl-keyfile k", "--ssl-keyfile: TLS ends at a proxy"),
        ("/m --load-format gguf", "--load-format: "),
        ("/m --revision v1", "--revision: .*'/m' is none"),
        ("org/name@v1 --revision v2", "--revision: .*already has one"),
        ("--revision v1", "--revision: .*none is named"),
        ("/m --model /other", "--model: is '/other', but MODEL is '/m'"),
        ("/m --model-uri /other", "MODEL: is '/m', but --model-uri is '/other'"),
        ("/m --page-size 16 --block-size 32", "--block-size: is '32', but --page-size is '16'"),
        ("/m --gpu-memory-utilization 90", "--gpu-memory-utilization: Input should be less than or equal to 1"),
        ("/m --kv-cache-dtype fp8_e5m2", "--kv-cache-dtype: Input should be 'auto', 'bfloat16', 'int8' or 'fp8'"),
        ("--served-model-name a org/name", "--served-model-name: .*Write MODEL before"),
    ],
)
def test_a_promise_that_is_not_kept_is_refused_by_the_name_that_was_typed(line, reason, capsys):
    with pytest.raises(SettingsError, match=f"^{reason}"):
        read(line, capsys)


def answer(flag: str, capsys) -> str:
    """Whether a flag sets something, or what is printed about it."""
    value = [] if flag in vllm.switches() else [VALUES.get(flag.lstrip("-"), "x")]
    model = [] if flag in ("--model", "--model-tag") else ["org/name"]
    try:
        settings, printed = read([*model, flag, *value], capsys)
    except SettingsError as error:
        return str(error)
    return "set" if settings != Settings(model_uri="hf://org/name") else printed.partition("levserve serve: ")[2]


def test_every_flag_of_vllm_is_a_setting_or_has_an_answer_of_its_own(capsys):
    """None is unknown, none is silently without effect, and an answer begins with a flag."""
    answers = {flag: answer(flag, capsys) for flag in vllm.flags()}
    assert {flag: text for flag, text in answers.items() if not text.startswith(("set", "-"))} == {}


def test_no_flag_of_vllm_means_two_things():
    flags = vllm.flags()
    assert len(flags) == len(set(flags))
    own = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    assert own & set(flags) == set()
