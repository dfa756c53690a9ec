"""Write what openai-whisper hears in the clips with the weights of tiny.en, for the tests to compare with.

Run it in an environment of its own: `pip install torch==2.13.0 openai-whisper==20250625 safetensors`. In the service's,
`python -m examples.hear.tiny_en CHECKPOINT` and `python -m tests.contract.spoken_clips CLIPS` come first, then
`python tests/contract/make_hearing_references.py CHECKPOINT CLIPS`.
"""

import gzip
import hashlib
import json
import sys
import wave
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from whisper.model import ModelDimensions, Whisper

FILE = Path(__file__).with_name("hearing_references.json.gz")
PLACES = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
OTHERS = {
    "embed_tokens.weight": "token_embedding.weight",
    "embed_positions.weight": "positional_embedding",
}


def main(checkpoint: Path, clips: Path) -> None:
    """Write the file; it takes some minutes."""
    model = _model(checkpoint)
    found = {}
    if FILE.exists():
        found = json.loads(gzip.decompress(FILE.read_bytes()))
    for path in sorted(clips.glob("*.wav")):
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        digest = hashlib.sha256(samples.tobytes()).hexdigest()[:16]
        if found.get(path.stem, {}).get("digest") == digest:
            continue
        torch.manual_seed(0)
        # In the ladder of temperatures, one sample each, as for every other decoding.
        result = model.transcribe(samples.astype(np.float32) / 32768, language="en", fp16=False, best_of=None)
        windows = [
            [seek, [token for segment in segments for token in segment["tokens"]]]
            for seek, segments in groupby(result["segments"], key=lambda segment: segment["seek"])
        ]
        temperature = max((segment["temperature"] for segment in result["segments"]), default=0)
        found[path.stem] = {
            "digest": digest,
            "text": result["text"].strip(),
            "windows": windows,
            "hottest": temperature,
        }
        print(path.stem, result["text"], flush=True)
        FILE.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":"), sort_keys=True).encode(), mtime=0))


def _model(folder: Path) -> Whisper:
    config = json.loads((folder / "config.json").read_text())
    model = Whisper(
        ModelDimensions(
            n_mels=config["num_mel_bins"],
            n_audio_ctx=config["max_source_positions"],
            n_audio_state=config["d_model"],
            n_audio_head=config["encoder_attention_heads"],
            n_audio_layer=config["encoder_layers"],
            n_vocab=config["vocab_size"],
            n_text_ctx=config["max_target_positions"],
            n_text_state=config["d_model"],
            n_text_head=config["decoder_attention_heads"],
            n_text_layer=config["decoder_layers"],
        )
    )
    weights = {_name(name): tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown, unknown
    assert all("mask" in name for name in missing), missing
    return model.eval()


def _name(name: str) -> str:
    """Return openai's name of a weight."""
    side, _, rest = name.removeprefix("model.").partition(".")
    if rest.startswith("layers."):
        _, number, place = rest.split(".", 2)
        place, _, parameter = place.rpartition(".")
        return f"{side}.blocks.{number}.{PLACES[place]}.{parameter}"
    if rest.startswith("layer_norm."):
        return f"{side}.{'ln_post' if side == 'encoder' else 'ln'}.{rest.rpartition('.')[2]}"
    return f"{side}.{OTHERS.get(rest, rest)}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
