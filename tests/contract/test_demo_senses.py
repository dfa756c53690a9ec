"""The demo models that hear and see, served from their checkpoints, through OpenAI's client."""

import io
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.slow
def test_the_demo_model_sees_what_is_drawn(tmp_path):
    with running_service(model_uri=see.DEMO, model_name=see.MODEL, local_model_cache=tmp_path) as service:
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
