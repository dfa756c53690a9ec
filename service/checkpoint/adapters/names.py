"""The names of an adapter's tensors, as PEFT and what wraps its models write them.

Source: PEFT 0.21 `utils/save_and_load.py` (get_peft_model_state_dict, set_peft_model_state_dict) and `utils/other.py`
(ModulesToSaveWrapper, TrainableTokensWrapper); torch `_dynamo/eval_frame.py` and `nn/parallel/distributed.py`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from service.errors import RefusedAdapter

PREFIX = "base_model.model."
A, B, BIAS, TOKENS, WHOLE = "lora_A.weight", "lora_B.weight", "lora_B.bias", "token_adapter.trainable_tokens_delta", ""
# What wraps a model or one of its modules adds these, wherever they stand.
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_MODULE = re.compile(r"^(?:module\.)+")
# A tensor of an update; a name of the adapter stands before its end where another program than PEFT saved it.
_UPDATE = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_[AB]|token_adapter\.trainable_tokens_delta)"
    r"(?:\.(?P<adapter>(?!weight$|bias$)[^.]+))?(?P<end>\.weight|\.bias)?"
)
# A tensor of the model itself that was trained, or saved beside the updates.
_SAVED = re.compile(r"\.(?:modules_to_save(?:\.(?P<adapter>[^.]+)(?=\.))?|base_layer)(?=\.)")
# Parts of the names of tensors that are not served, with what they are.
OTHERS = {
    ".lora_magnitude_vector": "DoRA is not served",
    ".lora_embedding_": "updates of embeddings are not served",
    ".lora_": "an update of this kind is not served",
}


@dataclass(frozen=True)
class AdapterTensor:
    """One tensor of an adapter."""

    stored: str  # its name in the file
    module: str  # the layer's name in the base model; of a whole tensor the tensor's
    part: str


def read_names(uri: str, file: str, names: Iterable[str]) -> list[AdapterTensor]:
    """Return what each tensor of an adapter is.

    Raises:
        RefusedAdapter: a tensor is of a kind that is not served, there are several adapters, or one tensor twice.
    """
    found: dict[tuple[str, str], AdapterTensor] = {}
    adapters: set[str] = set()
    for stored in names:
        name = _WRAPPERS.sub("", _MODULE.sub("", stored)).removeprefix(PREFIX)
        tensor, adapter = _read(uri, file, stored, name)
        if adapter is not None:
            adapters.add(adapter)
        first = found.setdefault((tensor.module, tensor.part), tensor)
        if first is not tensor:
            raise RefusedAdapter(uri, file, stored, f"is the same tensor as {first.stored!r}")
    if len(adapters) > 1:
        raise RefusedAdapter(uri, file, "tensors", f"are of several adapters: {', '.join(sorted(adapters))}")
    return list(found.values())


def _read(uri: str, file: str, stored: str, name: str) -> tuple[AdapterTensor, str | None]:
    match = _UPDATE.fullmatch(name)
    if match is not None:
        part = f"{match['part']}{match['end'] or ''}"
        if part in {A, B, BIAS, TOKENS}:
            return AdapterTensor(stored, match["module"], part), match["adapter"]
    reason = next((reason for other, reason in OTHERS.items() if other in name), None)
    if reason is not None:
        raise RefusedAdapter(uri, file, stored, reason)
    saved = _SAVED.search(name)
    adapter = None if saved is None else saved["adapter"]
    return AdapterTensor(stored, _SAVED.sub("", name), WHOLE), adapter
