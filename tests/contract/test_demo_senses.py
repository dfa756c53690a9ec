"""The demo models that hear and see, served from their checkpoints, through OpenAI's client."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from examples.hear import run as hear
from examples.hear.training import network
from examples.see import run as see
from examples.see.drawings import QUESTIONS, draw, scene
from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.device.mesh import DeviceMesh
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.checkpoint.quantized_formats import fp8
from tests.process import running_service
from tests.tolerances import SAME_MODEL_ATOL

SAID = "open romeo two nine please play three left stop save kilo seven four"
DRAWINGS = range(2_000_000, 2_000_005)


@pytest.mark.slow
def test_the_demo_model_hears_what_is_said(tmp_path):
    with running_service(model_uri=hear.DEMO, model_name="hear", local_model_cache=tmp_path) as service:
        ask = service.client().audio.transcriptions.create
        file = (hear.SPOKEN.name, hear.SPOKEN.read_bytes())
        assert ask(model="hear", file=file).text.strip() == SAID
        found = ask(model="hear", file=file, response_format="verbose_json", timestamp_granularities=["word"])
        assert [word.word.strip() for word in found.words] == SAID.split()
        begins = [word.start for word in found.words]
        assert begins == sorted(begins)


def save_in_fp8(folder: Path) -> Path:
    """Write the model that sees as the FP8 checkpoints of Qwen3-VL are: the decoder in blocks, the tower wide."""
    shutil.copytree(see.DEMO, folder)
    quantize, stored = fp8((128, 128), "_scale_inv"), {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if ".layers." in name and name.endswith("proj.weight"):
            written, _ = quantize(tensor.astype(np.float32))
            stored |= {f"{name.removesuffix('weight')}{key}": value for key, value in written.items()}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    wide = ["lm_head", "model.visual"]
    config["quantization_config"] = {
        **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
        **{"weight_block_size": [128, 128], "modules_to_not_convert": wide},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in int8": {"quantization": "int8"},
    "from an FP8 checkpoint": {"stored": save_in_fp8},
    "on two devices": {"xla_flags": "--xla_force_host_platform_device_count=2", "tensor_parallel": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_demo_model_sees_what_is_drawn(tmp_path, way: str):
    settings = dict(WAYS[way])
    save = settings.pop("stored", None)
    uri = see.DEMO if save is None else save(tmp_path / "model")
    with running_service(
        model_uri=uri, model_name=see.MODEL, local_model_cache=tmp_path / "cache", **settings
    ) as service:
        for seed in DRAWINGS:
            chosen, output = random.Random(seed), io.BytesIO()
            drawn = scene(chosen)
            draw(drawn, chosen).save(output, "PNG")
            url = see.data_url(output.getvalue(), "image/png")
            for kind, questions in QUESTIONS.items():
                assert see.answer(service.client(), url, questions[0]) == drawn.answer(kind)


def test_the_network_that_is_trained_is_the_one_that_is_served():
    located = locate(str(hear.DEMO), LocalSource)
    model = Decoder(read_config("hear", located.hub_config))
    mesh = DeviceMesh((jax.devices()[0],))
    loaded = load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=LoadLimits(None, Progress(), 1 << 20))
    features = jnp.asarray(np.random.RandomState(0).randn(network.WINDOW_FRAMES, network.NUM_MELS), jnp.float32)
    hidden = model.encoder.begin(loaded.weights, features)
    for group in model.encoder.layer_groups:
        hidden = model.encoder.run_layer_group(group, [loaded.weights[name] for name in group.weights], hidden)
    served = model.encoder.end(loaded.weights, hidden)
    with jax.numpy_rank_promotion("allow"):
        trained = network.encode(network.read_weights(Path(hear.DEMO)), features[None])[0]
    np.testing.assert_allclose(trained, served, atol=SAME_MODEL_ATOL, rtol=0)
