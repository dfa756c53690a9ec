"""transformers on torch: `generate` with a static batch, greedy, no HTTP.

python -m benchmarks.peers.transformers CHECKPOINT
"""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.worker import Generate, run_worker


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line, in float32."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        input_ids = torch.tensor(prompts)
        with torch.inference_mode():
            result = model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                do_sample=False,
                min_new_tokens=output_tokens,
                max_new_tokens=output_tokens,
            )
        return {"token_ids": result[:, input_ids.shape[1] :].tolist()}

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"generate": generate}, {**versions, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    run_worker(load)
