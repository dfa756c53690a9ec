"""Mistral 3: Mistral or Ministral 3 beside an encoder of pictures, of which the text model is served.

Source: transformers `models/mistral3/configuration_mistral3.py`, `models/mistral3/modeling_mistral3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families import mistral
from service.models.families.hub_keys import resolved
from service.models.families.llama import NAMES
from service.models.quantization_config import read_layer_storage

# As files of today name the tensors, without `model.`; see `bare_name` for others.
TEXT_NAMES = replace(NAMES, prefix="language_model.")
TEXT_TYPES = ("mistral", "ministral", "ministral3")  # the first where a file names none


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral3`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    text = config.part("text_config")
    text.refuse_unless("model_type", *TEXT_TYPES)
    decoder = mistral.read_config(resolved(text, text.values.get("model_type") or TEXT_TYPES[0]))
    return replace(
        decoder,
        model_type="mistral3",
        names=TEXT_NAMES,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        layer_storage=read_layer_storage(config.uri, config.values),
    )
