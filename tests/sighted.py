"""Tiny random models that see, as checkpoints on disk.

They are a SmolVLM with tiles of 28 pixels, a Qwen3-VL, a Qwen 3.5, a Gemma 3, a Gemma 4 and a Mistral 3.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from safetensors.numpy import save_file

from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from tests.media.image_files import image_file
from tests.parity.family_cases import draw
from tests.parity.vision_cases import (
    CONFIG,
    GEMMA4_CONFIGS,
    GEMMA_CONFIG,
    GEMMA_IMAGE_SIZE,
    IMAGE_SIZE,
    MISTRAL_CONFIG,
    QWEN35_CONFIG,
    QWEN_CONFIG,
    draw_qwen35,
)

DEMO = Path(__file__).parents[1] / "service" / "demo"
PLACEHOLDER = "<image>"
SPECIAL = (PLACEHOLDER, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
MAX_TOKENS = 256
LONGEST_EDGE = 2 * IMAGE_SIZE
# Source: transformers `models/smolvlm/processing_smolvlm.py` (DEFAULT_CHAT_TEMPLATE)
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN_SPECIAL = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
QWEN_TEMPLATE = (
    "{% for message in messages %}{{message.role}}:{% if message.content is string %}{{message.content}}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{part.text}}{% endif %}{% endfor %}{% endif %}"
    "<end_of_utterance>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
GEMMA_SPECIAL = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
# Source: https://huggingface.co/google/gemma-3-4b-it (chat_template.json), without its checks
GEMMA_TEMPLATE = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}{% for message in turns %}"
    "{{'<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + "
    "(first if loop.first else '')}}{% if message.content is string %}{{message.content | trim}}{% else %}"
    "{% for item in message.content %}{% if item.type == 'image' %}<start_of_image>{% else %}{{item.text | trim}}"
    "{% endif %}{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_PREPROCESSOR = {
    **{"do_pan_and_scan": None, "do_resize": True, "image_processor_type": "Gemma3ImageProcessor", "resample": 2},
    **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255},
    "size": {"height": GEMMA_IMAGE_SIZE, "width": GEMMA_IMAGE_SIZE},
}
GEMMA4_SPECIAL = ("<|image>", "<image|>", "<|image|>")
GEMMA4_TEMPLATE = (
    "{% for message in messages %}{{'<|turn>' + message.role + '\n'}}{% if message.content is string %}"
    "{{message.content}}{% else %}{% for item in message.content %}{% if item.type == 'image' %}"
    "{{'\n\n<|image|>\n\n'}}{% else %}{{item.text | trim}}{% endif %}{% endfor %}{% endif %}{{'<turn|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|turn>model\n'}}{% endif %}"
)
GEMMA4_PREPROCESSOR = {
    **{"do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "resample": 3},
    **{"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70},
}
MISTRAL_SPECIAL = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
MISTRAL_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}[INST]{% if message.content is string %}"
    "{{message.content}}{% else %}{% for part in message.content %}{% if part.type == 'image' %}[IMG]{% else %}"
    "{{part.text}}{% endif %}{% endfor %}{% endif %}[/INST]{% else %}{{message.content}}<end_of_utterance>{% endif %}"
    "{% endfor %}"
)
MISTRAL_PREPROCESSOR = {
    **{"size": {"longest_edge": 60}, "patch_size": {"height": 4, "width": 4}, "resample": 3},
    **{"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]},
}
PREPROCESSOR = {
    "do_image_splitting": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": IMAGE_SIZE},
    "resample": 1,
    "size": {"longest_edge": LONGEST_EDGE},
}


def sighted_tokenizer() -> tokenizers.Tokenizer:
    """Return the demo model's tokenizer with the tokens of images."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([*SPECIAL, *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))])
    return tokenizer


def save_sighted(folder: Path) -> None:
    """Write the checkpoint of the SmolVLM."""
    tokenizer = sighted_tokenizer()
    text = CONFIG["text_config"] | {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    config = CONFIG | {
        "model_type": "smolvlm",
        "image_token_id": tokenizer.token_to_id(PLACEHOLDER),
        "text_config": text,
    }
    _save(folder, tokenizer, config, PREPROCESSOR, TEMPLATE)


def save_qwen(
    folder: Path,
    *,
    text: Mapping[str, Any] = MappingProxyType({}),
    vision: Mapping[str, Any] = MappingProxyType({}),
    image_tokens: tuple[int, int] = (9, 40),
    whole: Mapping[str, Any] = MappingProxyType(QWEN_CONFIG),
) -> None:
    """Write the checkpoint of the Qwen3-VL, or of the Qwen 3.5.

    Args:
        folder: where it is made.
        text: what differs in the configuration of the text tower.
        vision: what differs in that of the image encoder.
        image_tokens: the fewest and the most that an image has.
        whole: the configuration of the model.
    """
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([*QWEN_SPECIAL, "<end_of_utterance>"])
    ids = zip(("image", "vision_start", "vision_end"), map(tokenizer.token_to_id, QWEN_SPECIAL), strict=True)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    config = {
        **whole,
        **{f"{name}_token_id": token_id for name, token_id in ids},
        "text_config": whole["text_config"] | sizes | text,
        "vision_config": whole["vision_config"] | vision,
    }
    edge = 2 * config["vision_config"]["patch_size"]
    fewest, most = image_tokens
    preprocessor = {
        "size": {"shortest_edge": fewest * edge**2, "longest_edge": most * edge**2},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    _save(folder, tokenizer, config, preprocessor, QWEN_TEMPLATE)


def save_qwen35(folder: Path) -> None:
    """Write the checkpoint of the Qwen 3.5."""
    save_qwen(folder, whole=QWEN35_CONFIG)


def gemma_tokenizer() -> tokenizers.Tokenizer:
    """Return the demo model's tokenizer with the tokens of Gemma's images and turns."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([*GEMMA_SPECIAL, "<start_of_turn>", "<end_of_utterance>"])
    return tokenizer


def save_gemma(folder: Path) -> None:
    """Write the checkpoint of the Gemma 3."""
    tokenizer = gemma_tokenizer()
    begin, end, row = map(tokenizer.token_to_id, GEMMA_SPECIAL)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    ids = {"boi_token_index": begin, "eoi_token_index": end, "image_token_index": row}
    config = GEMMA_CONFIG | ids | {"text_config": GEMMA_CONFIG["text_config"] | sizes}
    _save(folder, tokenizer, config, GEMMA_PREPROCESSOR, GEMMA_TEMPLATE)


def gemma4_tokenizer() -> tokenizers.Tokenizer:
    """Return the demo model's tokenizer with the tokens of Gemma 4's images and turns."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([*GEMMA4_SPECIAL, "<|turn>", "<turn|>", "<end_of_utterance>"])
    return tokenizer


def save_gemma4(folder: Path) -> None:
    """Write the checkpoint of the Gemma 4, whose images have 24 tokens at most."""
    tokenizer = gemma4_tokenizer()
    names = ("boi_token_id", "eoi_token_id", "image_token_id")
    ids = dict(zip(names, map(tokenizer.token_to_id, GEMMA4_SPECIAL), strict=True))
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    config = GEMMA4_CONFIGS["gemma4_vision"]
    vision = config["vision_config"] | {"position_embedding_size": 100}
    own = {"text_config": config["text_config"] | sizes, "vision_config": vision, "vision_soft_tokens_per_image": 24}
    _save(folder, tokenizer, config | ids | own, GEMMA4_PREPROCESSOR, GEMMA4_TEMPLATE)


def mistral_tokenizer() -> tokenizers.Tokenizer:
    """Return the demo model's tokenizer with the tokens of Mistral's images and turns."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    tokenizer.add_special_tokens([*MISTRAL_SPECIAL, "[INST]", "[/INST]", "<end_of_utterance>"])
    return tokenizer


def save_mistral(folder: Path) -> None:
    """Write the checkpoint of the Mistral 3."""
    tokenizer = mistral_tokenizer()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    ids = {"image_token_index": tokenizer.token_to_id(MISTRAL_SPECIAL[0])}
    config = MISTRAL_CONFIG | ids | {"text_config": MISTRAL_CONFIG["text_config"] | sizes}
    _save(folder, tokenizer, config, MISTRAL_PREPROCESSOR, MISTRAL_TEMPLATE)


def _save(folder: Path, tokenizer: tokenizers.Tokenizer, config: Any, preprocessor: Any, template: str) -> None:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = config | {"torch_dtype": "float32"}
    for name, values in (
        ("config.json", config),
        ("preprocessor_config.json", preprocessor),
        ("tokenizer_config.json", {"eos_token": "<end_of_utterance>", "chat_template": template}),
    ):
        (folder / name).write_text(json.dumps(values))
    specs = decoder_weight_specs(read_config("m", config))
    stored = {tensor.name: tensor.shape for spec in specs for source in spec.sources for tensor in source.stored}
    model_type = config["model_type"]
    drawn = {
        name: draw_qwen35(name, shape) if model_type == "qwen3_5" else draw(model_type, name, shape)
        for name, shape in stored.items()
    }
    save_file(drawn, folder / "model.safetensors")


def data_url(content: bytes | None = None, media_type: str = "image/png") -> str:
    """Return an image as a data URL; by default a drawing of 37 x 23 pixels."""
    encoded = base64.b64encode(image_file("PNG") if content is None else content).decode()
    return f"data:{media_type};base64,{encoded}"


def shown(*urls: str, text: str = "What is it?") -> list[dict[str, Any]]:
    """Return the messages of a chat that shows images."""
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]
