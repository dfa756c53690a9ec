"""Makes the reference outputs of tiny models that see with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_vision_references [NAME …]

The service never imports torch; what this writes is committed.
"""

import functools
import sys

import numpy as np
import torch
import transformers

from tests.parity.family_cases import draw
from tests.parity.vision_cases import (
    CONFIG,
    GEMMA4_CONFIGS,
    GEMMA4_GRIDS,
    GEMMA_CONFIG,
    GEMMA_REFERENCE_PATH,
    GRIDS,
    IMAGE_TOKEN,
    MISTRAL_CONFIG,
    MISTRAL_REFERENCE_PATH,
    QWEN35_CONFIG,
    QWEN35_REFERENCE_PATH,
    QWEN_CONFIG,
    QWEN_REFERENCE_PATH,
    REFERENCE_PATH,
    draw_gemma,
    draw_gemma4,
    draw_qwen35,
    gemma4_pictures,
    gemma4_reference,
    gemma4_token_ids,
    gemma_pictures,
    gemma_token_ids,
    mistral_pictures,
    mistral_token_ids,
    patches,
    pictures,
    qwen_token_ids,
    token_ids,
)

# Source: transformers `models/pixtral/image_processing_pil_pixtral.py`
PIXEL_MEAN, PIXEL_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def main() -> None:
    """Write the rows of every picture, and the logits of every position, of the models that are named, or of all."""
    made = {
        "idefics3": of_idefics3,
        "qwen3_vl": of_qwen3_vl,
        "gemma3": of_gemma3,
        "mistral3": of_mistral3,
        "qwen3_5": of_qwen3_5,
    }
    made |= {name: functools.partial(of_gemma4, name) for name in GEMMA4_CONFIGS}
    for name in sys.argv[1:] or made:
        made[name]()


def of_qwen3_vl() -> None:
    """Write those of pictures of several shapes, and what the first layers add."""
    config = transformers.Qwen3VLConfig(**{key: value for key, value in QWEN_CONFIG.items() if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.Qwen3VLForConditionalGeneration(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors = {name: draw("qwen3_vl", name, shape) for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v) for k, v in tensors.items()}, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    size = QWEN_CONFIG["vision_config"]["patch_size"]
    values = np.concatenate([patches(number) for number in range(len(GRIDS))]).reshape(-1, 3, 1, size, size)
    pixels = ((values / np.float32(255) - 0.5) / 0.5).astype(np.float32)
    pixels = torch.from_numpy(np.repeat(pixels, 2, axis=2).reshape(len(pixels), -1))
    grids = torch.tensor([(1, *grid) for grid in GRIDS])
    ids = torch.from_numpy(qwen_token_ids()[None]).long()
    with torch.no_grad():
        seen = model.model.visual(pixels, grid_thw=grids)
        types = (ids == IMAGE_TOKEN).int()
        logits = model(input_ids=ids, pixel_values=pixels, image_grid_thw=grids, mm_token_type_ids=types).logits
        positions, _ = model.model.get_rope_index(ids, types, image_grid_thw=grids)
    np.savez_compressed(
        QWEN_REFERENCE_PATH,
        rows=torch.stack([seen.pooler_output, *seen.deepstack_features], dim=1).numpy(),
        positions=positions[:, 0].numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {logits.shape} std {logits.std():.3f}", *list(shapes)[:4], *list(shapes)[-2:])


def of_qwen3_5() -> None:
    """Write those of pictures of several shapes, in a text whose layers keep states."""
    config = transformers.Qwen3_5Config(**{key: value for key, value in QWEN35_CONFIG.items() if key != "model_type"})
    model = transformers.Qwen3_5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(draw_qwen35(name, shape)) for name, shape in shapes.items()})
    size = QWEN35_CONFIG["vision_config"]["patch_size"]
    values = np.concatenate([patches(number) for number in range(len(GRIDS))]).reshape(-1, 3, 1, size, size)
    pixels = ((values / np.float32(255) - 0.5) / 0.5).astype(np.float32)
    pixels = torch.from_numpy(np.repeat(pixels, 2, axis=2).reshape(len(pixels), -1))
    grids = torch.tensor([(1, *grid) for grid in GRIDS])
    ids = torch.from_numpy(qwen_token_ids()[None]).long()
    with torch.no_grad():
        rows = model.model.visual(pixels, grid_thw=grids).pooler_output
        types = (ids == IMAGE_TOKEN).int()
        logits = model(input_ids=ids, pixel_values=pixels, image_grid_thw=grids, mm_token_type_ids=types).logits
        positions, _ = model.model.get_rope_index(ids, types, image_grid_thw=grids)
    np.savez_compressed(
        QWEN35_REFERENCE_PATH,
        rows=rows.numpy(),
        positions=positions[:, 0].numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {logits.shape} std {logits.std():.3f} rows {rows.shape} std {rows.std():.3f}", *list(shapes)[:3])


def of_gemma3() -> None:
    """Write those of square pictures whose rows see each other, and of texts with one to four of them and without."""
    config = transformers.Gemma3Config(**{key: value for key, value in GEMMA_CONFIG.items() if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors = {name: torch.from_numpy(draw_gemma(name, shape)) for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    pixels = torch.from_numpy((gemma_pictures().transpose(0, 3, 1, 2) / np.float32(255) - 0.5) / 0.5).float()
    logits = {}
    with torch.no_grad():
        rows = model.model.get_image_features(pixels).pooler_output
        for count in range(len(pixels) + 1):
            ids = torch.from_numpy(gemma_token_ids(count)[None]).long()
            seen = {"pixel_values": pixels[:count], "token_type_ids": (ids == IMAGE_TOKEN).int()} if count else {}
            logits[f"logits{count}"] = model(input_ids=ids, **seen).logits[0].numpy()
    np.savez_compressed(
        GEMMA_REFERENCE_PATH,
        rows=rows.numpy(),
        **logits,
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits std {[round(float(found.std()), 3) for found in logits.values()]} rows std {rows.std():.3f}")


def of_mistral3() -> None:
    """Write those of pictures of several shapes, each line of which ends with a token of its own."""
    config = transformers.Mistral3Config(**{key: value for key, value in MISTRAL_CONFIG.items() if key != "model_type"})
    model = transformers.Mistral3ForConditionalGeneration._from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tensors = {name: torch.from_numpy(draw("mistral3", name, shape)) for name, shape in shapes.items()}
    model.load_state_dict(tensors)
    mean, deviation = (np.array(values, np.float32) for values in (PIXEL_MEAN, PIXEL_DEVIATION))
    scaled = [(picture / np.float32(255) - mean) / deviation for picture in mistral_pictures()]
    sizes = np.array([picture.shape[:2] for picture in scaled])
    height, width = sizes.max(axis=0)
    padded = [np.pad(one, ((0, height - one.shape[0]), (0, width - one.shape[1]), (0, 0))) for one in scaled]
    pixels, sizes = torch.from_numpy(np.stack(padded).transpose(0, 3, 1, 2)).float(), torch.from_numpy(sizes)
    ids = torch.from_numpy(mistral_token_ids()[None]).long()
    with torch.no_grad():
        rows = model.model.get_image_features(pixels, sizes).pooler_output
        logits = model(input_ids=ids, pixel_values=pixels, image_sizes=sizes).logits
    np.savez_compressed(
        MISTRAL_REFERENCE_PATH,
        rows=torch.cat(list(rows)).numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {logits.shape} std {logits.std():.3f} rows std {torch.cat(list(rows)).std():.3f}", *list(shapes)[:9])


def of_gemma4(name: str) -> None:
    """Write those of pictures of several shapes, of which squares of patches are pooled."""
    values = GEMMA4_CONFIGS[name]
    config = transformers.Gemma4Config(**{key: value for key, value in values.items() if key != "model_type"})
    model = transformers.Gemma4ForConditionalGeneration._from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors = {name: torch.from_numpy(np.array(draw_gemma4(name, shape))) for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    size, most = values["vision_config"]["patch_size"], max(rows * columns for rows, columns in GEMMA4_GRIDS)
    pixels = np.zeros((len(GEMMA4_GRIDS), most, 3 * size**2), np.float32)
    places = np.full((len(GEMMA4_GRIDS), most, 2), -1)
    for number, (picture, (rows, columns)) in enumerate(zip(gemma4_pictures(), GEMMA4_GRIDS, strict=True)):
        cut = (picture / np.float32(255)).reshape(rows, size, columns, size, 3).transpose(0, 2, 1, 3, 4)
        pixels[number, : rows * columns] = cut.reshape(rows * columns, -1)
        y, x = np.mgrid[:rows, :columns]
        places[number, : rows * columns] = np.stack([x, y], axis=-1).reshape(-1, 2)
    seen = {"pixel_values": torch.from_numpy(pixels), "image_position_ids": torch.from_numpy(places)}
    ids = torch.from_numpy(gemma4_token_ids()[None]).long()
    with torch.no_grad():
        rows = torch.cat(list(model.model.get_image_features(**seen).pooler_output))
        logits = model(input_ids=ids, mm_token_type_ids=(ids == IMAGE_TOKEN).int(), **seen).logits
    np.savez_compressed(
        gemma4_reference(name),
        rows=rows.numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"{name} logits {logits.shape} std {logits.std():.3f} rows {rows.shape} std {rows.std():.3f}")


def of_idefics3() -> None:
    """Write those of square pictures."""
    config = transformers.Idefics3Config(**{key: value for key, value in CONFIG.items() if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.Idefics3ForConditionalGeneration(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tensors = {name: draw("idefics3", name, shape) for name, shape in shapes.items()}
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    pixels = torch.from_numpy((pictures().transpose(0, 3, 1, 2) / np.float32(255) - 0.5) / 0.5)[None].float()
    with torch.no_grad():
        seen = model.model.get_image_features(pixels).pooler_output
        logits = model(input_ids=torch.from_numpy(token_ids()[None]).long(), pixel_values=pixels).logits
    np.savez_compressed(
        REFERENCE_PATH,
        rows=torch.cat(list(seen)).reshape(len(pictures()), -1, seen[0].shape[-1]).numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {logits.shape} std {logits.std():.3f}", *list(shapes)[:4], list(shapes)[-2:])


if __name__ == "__main__":
    main()
