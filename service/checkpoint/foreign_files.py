"""Files of formats that are not served, recognized by their names: what they are, and what to do."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OF_TRANSFORMERS = "Serve the folder of the same model that transformers saved (config.json and model.safetensors)"
_BY_TRANSFORMERS = "Load it with transformers in PyTorch and call save_pretrained()"


PIPELINE = "model_index.json"


class FileFormat(NamedTuple):
    """A format by the names of its files."""

    pattern: re.Pattern[str]
    what: str
    remedy: str


FORMATS = tuple(
    FileFormat(re.compile(pattern), what, remedy)
    for pattern, what, remedy in (
        (rf"^{PIPELINE}$", "a pipeline of diffusers, which makes pictures", "Serve a model that writes text"),
        (r"\.(gguf|ggml|llamafile)$", "GGUF files for llama.cpp", _OF_TRANSFORMERS),
        (r"\.(onnx|onnx_data|onnx\.data|ort)$", "ONNX graphs", _OF_TRANSFORMERS),
        (r"(^|/)openvino_\w+\.(xml|bin)$", "OpenVINO graphs", _OF_TRANSFORMERS),
        (
            r"\.nemo$|(^|/)model_weights\.ckpt$|(^|/)context/(io\.json|model\.yaml)$",
            "a NeMo archive",
            "Export it with NeMo to Hugging Face's format",
        ),
        (r"(^|/)(mlc-chat-config|ndarray-cache|tensor-cache)\.json$|params_shard_\d+\.bin$", "MLC", _OF_TRANSFORMERS),
        (r"(^|/)rank\d+\.(engine|safetensors)$|\.(engine|plan)$", "TensorRT engines", _OF_TRANSFORMERS),
        (r"(^|/)tf_model.*\.h5$|\.keras$", "TensorFlow weights", f"{_BY_TRANSFORMERS} (from_tf=True)"),
        (r"(^|/)saved_model\.pb$|\.ckpt\.(index|meta)$|\.ckpt-\d+\.(index|meta)$", "TensorFlow", _BY_TRANSFORMERS),
        (r"\.(tflite|litertlm|task)$", "a model for LiteRT", _OF_TRANSFORMERS),
        (r"(^|/)flax_model.*\.msgpack$|\.msgpack$", "Flax weights", f"{_BY_TRANSFORMERS} (from_flax=True)"),
        (r"\.ml(model|package|modelc)(/|$)", "a model for Core ML", _OF_TRANSFORMERS),
        (r"(^|/)rust_model\.ot$", "weights for rust-bert", _OF_TRANSFORMERS),
        (r"\.npz$", "numpy or MLX archives", _OF_TRANSFORMERS),
        (
            r"\.distcp$|(^|/)pytorch_model_fsdp",
            "a distributed checkpoint of PyTorch (FSDP)",
            "Merge it with accelerate merge-weights",
        ),
        (
            r"(^|/)(mp_rank_\d+_model_states|.*_optim_states)\.pt$|(^|/)zero_to_fp32\.py$",
            "a checkpoint of DeepSpeed",
            "Merge it with its zero_to_fp32.py",
        ),
        (r"(^|/)iter_\d+/|(^|/)latest_checkpointed_iteration\.txt$", "Megatron", "Export it to Hugging Face's format"),
        (
            r"(^|/)consolidated\.\d+\.(pth|pt)$",
            "files of Meta's or Mistral's own code",
            "Serve the files of the same model for transformers, or convert them with its "
            "convert_llama_weights_to_hf.py",
        ),
        (r"(^|/)(_CHECKPOINT_METADATA|_METADATA|_sharding)$", "a checkpoint of Orbax", "Export it to safetensors"),
    )
)
_CT2_WEIGHTS = re.compile(r"(.*/)?model\.bin")
_CT2_VOCABULARY = re.compile(r"(.*/)?(shared_|source_|target_)?vocabulary\.(json|txt)")


def foreign_format(names: Sequence[str]) -> tuple[str, str] | None:
    """Return what the files of a listing are, and what to do; None if no format is recognized."""
    vocabularies = {match[1] for name in names if (match := _CT2_VOCABULARY.fullmatch(name))}
    for name in names:
        if (match := _CT2_WEIGHTS.fullmatch(name)) and match[1] in vocabularies:
            return f"CTranslate2 ({name})", _OF_TRANSFORMERS
    for known in FORMATS:
        if (name := _first(known.pattern, names)) is not None:
            return f"{known.what} ({name})", known.remedy
    return None


def _first(pattern: re.Pattern[str], names: Iterable[str]) -> str | None:
    return next((name for name in names if pattern.search(name)), None)
