"""Makes the reference logits of adapters: PEFT merges each into its base model, on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch transformers peft numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_adapter_references [NAME …]

The service never imports torch or PEFT; what this writes is committed.
"""

import json
import sys
import tempfile

import numpy as np
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.parity.adapter_cases import ADAPTER_CASES, MERGED_CASES, AdapterCase
from tests.parity.make_references import reference_model


def base_model(case: AdapterCase, folder: str) -> transformers.PreTrainedModel:
    """Return the base model with its weights, in float32."""
    model = reference_model(case.model)
    model.config.save_pretrained(folder)
    save_file(case.model.tensors(), f"{folder}/model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def main() -> None:
    """Write one file a case; of the named cases, if any is named."""
    cases = (*ADAPTER_CASES, *MERGED_CASES)
    names = sys.argv[1:] or [case.name for case in cases]
    versions = {"peft": peft.__version__, "torch": torch.__version__}
    for case in (case for case in cases if case.name in names):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as adapter:
            config = peft.LoraConfig(task_type="CAUSAL_LM", **case.lora)
            peft.get_peft_model(base_model(case, folder), config).save_pretrained(adapter)
            shapes = {name: t.shape for name, t in load_file(f"{adapter}/adapter_model.safetensors").items()}
            drawn = {name: case.draw(name, shape) for name, shape in shapes.items()}
            save_file(drawn, f"{adapter}/adapter_model.safetensors", {"format": "pt"})
            with open(f"{adapter}/adapter_config.json") as file:
                written = json.load(file)
            merged = peft.PeftModel.from_pretrained(base_model(case, folder), adapter).merge_and_unload()
            plain = base_model(case, folder)
        with torch.no_grad():
            ids = torch.from_numpy(case.model.token_ids[None]).long()
            logits, before = (model(ids).logits[0].numpy() for model in (merged, plain))
        kept = np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()])
        text = json.dumps(written | {"base_model_name_or_path": case.base})
        np.savez_compressed(case.reference_path, logits=logits, shapes=kept, config=text, **versions)
        print(f"{case.name:16} {len(shapes):3} tensors, logits change by {np.abs(logits - before).max():.3f}")


if __name__ == "__main__":
    main()
