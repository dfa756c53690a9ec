"""Mistakes of an operator: one clear line with cause and remedy, exit code 1, within seconds, no traceback."""

import json
import shutil

import httpx
import pytest
from safetensors.numpy import save_file

from tests.process import ServiceProcess, running_service
from tests.served import DEMO, SMALL, demo_tensors


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    return folder


def last_words(**settings) -> str:
    """Start the service, see it end with exit code 1, and return its one error line."""
    with ServiceProcess(**settings) as service:
        assert service.exit_code == 1
    errors = [line for line in service.log if line.get("severity") in ("ERROR", "CRITICAL") or line.get("is_plain")]
    assert len(errors) == 1, service.raw
    assert "\n" not in errors[0]["message"]
    return errors[0]["message"]


def edit_config(checkpoint, **changes) -> None:
    path = checkpoint / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_url": "gs://b/m"}, "MODEL_URL: is not a setting of Levserve. Did you mean MODEL_URI?"),
        ({"port": "eighty"}, "PORT: Input should be a valid integer"),
        ({"max_num_seqs": 0}, "MAX_NUM_SEQS: Input should be greater than or equal to 1"),
        ({"gcs_model_prefix": "p"}, "GCS_MODEL_PREFIX: needs GCS_BUCKET"),
        ({"model_uri": "gs://b/m", "gcs_bucket": "b"}, "MODEL_URI: contradicts GCS_BUCKET"),
        ({"model_uri": "s3://b/m"}, "'s3://' is not supported. Write gs://bucket/prefix, hf://org/name"),
        ({"model_uri": "/no/such/folder"}, "/no/such/folder: no such folder"),
        ({"max_model_len": 50_000}, "MAX_MODEL_LEN: is 50000 tokens; the model was made for 16384 at most."),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    assert message in last_words(**settings)


def test_no_such_bucket_and_an_empty_prefix(tmp_path, gcs_bucket):
    settings = {"storage_emulator_host": gcs_bucket.endpoint, "local_model_cache": tmp_path}
    assert "gs://no-such-bucket/m" in last_words(model_uri="gs://no-such-bucket/m", **settings)
    assert "no object lies below this prefix" in last_words(model_uri=gcs_bucket.uri("nothing"), **settings)


def test_a_weight_that_is_nan_is_named(checkpoint, one_sequence):
    name, tensors = "model.layers.1.mlp.up_proj.weight", demo_tensors()
    tensors[name] = tensors[name].copy()
    tensors[name][3, 4] = float("nan")
    save_file(tensors, checkpoint / "model.safetensors")
    message = last_words(model_uri=checkpoint, local_model_cache=one_sequence.cache, **SMALL)
    assert f"{name}: has a value that is NaN or infinite, and so has every answer." in message


def test_an_unknown_family_is_refused_by_name_with_the_list(checkpoint):
    edit_config(checkpoint, model_type="nemotron")
    message = last_words(model_uri=checkpoint)
    assert "model_type 'nemotron' is not served, and code in a checkpoint is never run. Served: " in message
    assert "llama, " in message


def test_a_family_whose_cache_is_of_another_kind_is_refused_with_the_reason(checkpoint):
    edit_config(checkpoint, model_type="mamba")
    assert "model_type 'mamba' is not served: its recurrent layers keep a state" in last_words(model_uri=checkpoint)


def test_a_feature_that_is_not_served_is_refused_by_name(checkpoint):
    edit_config(checkpoint, rope_parameters={"rope_type": "spiral", "factor": 2.0}, rope_scaling=None)
    refusal = (
        "the rope scaling 'spiral' is not served; only default, dynamic, linear, llama3, longrope, proportional, yarn."
    )
    assert refusal in last_words(model_uri=checkpoint)


def test_a_missing_tokenizer_names_its_setting(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    assert "tokenizer.json is missing. Set TOKENIZER_URI" in last_words(model_uri=checkpoint)


def test_weights_of_another_shape_are_named_with_both(checkpoint):
    edit_config(checkpoint, intermediate_size=500)
    message = last_words(model_uri=checkpoint)
    assert "has shape [768, 256]; config.json makes it [500, 256]." in message


def test_a_cut_file_and_pickles_are_refused(checkpoint):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])
    assert "model.safetensors: the header describes" in last_words(model_uri=checkpoint)
    weights.rename(checkpoint / "pytorch_model.bin")
    assert "pytorch_model.bin: is malformed or truncated" in last_words(model_uri=checkpoint)
    (checkpoint / "pytorch_model.bin").rename(checkpoint / "model.pt")
    assert "the weights are pickled in unsupported files (model.pt)" in last_words(model_uri=checkpoint)


def test_a_model_that_does_not_fit_is_told_with_both_numbers(checkpoint):
    message = last_words(model_uri=checkpoint, device_memory_fraction="0.00001")
    assert "bytes on each device" in message
    assert "Set MAX_MODEL_LEN or MAX_NUM_SEQS lower" in message


def test_a_traceback_comes_with_debug_only(checkpoint):
    (checkpoint / "config.json").unlink()
    with ServiceProcess(model_uri=checkpoint, log_level="DEBUG") as service:
        assert service.exit_code == 1
    assert "MissingFile" in service.log[-1]["stack_trace"]


@pytest.mark.slow
@pytest.mark.usefixtures("cold_start")
def test_a_template_that_takes_all_memory_is_one_requests_error(checkpoint):
    attack = "{% if messages[0].content == 'attack' %}{{ 'a'.ljust(9999999999) }}{% endif %}"
    template = checkpoint / "chat_template.jinja"
    template.write_text(attack + template.read_text())
    with running_service(model_uri=checkpoint, model_name="m") as service:

        def status(text: str) -> int:
            messages = [{"role": "user", "content": text}]
            body = {"model": "m", "messages": messages, "max_tokens": 2}
            answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200 or answer.json()["error"]["code"] == "template_failed"
            return answer.status_code

        assert [status("hi"), status("attack"), status("hi")] == [200, 500, 200]
        assert service.stop() == 0
