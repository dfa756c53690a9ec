"""Compile the steps of every family for a machine that is not there, and print which attention kernel each has.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/tpu/bin/python -m tests.device_targets.compile_families v6e-1 [FAMILY …]

The layers are those of the families' tiny checkpoints, with heads as wide as those of published models.
"""

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from service.compile.aot import compile_programs
from service.engine.steps.keys import step_keys
from service.settings import Settings
from service.start.devices import use_target
from service.start.kinds.engine_spec import choose_engine_spec
from tests.parity.family_cases import FAMILY_CASES, MXFP4_CASE, FamilyCase

HEAD_DIMS = {
    **{"gemma": 256, "gemma2": 256, "gemma3_text": 256, "gemma4_text": 256},
    **{"gpt_oss": 64, "granitemoe": 64, "phi3": 96},
}
USUAL_HEAD_DIM = 128
NUM_HEADS = 8  # of GPT-2, whose heads share the hidden size


def main(target: str, *names: str) -> None:
    """Compile, and print a line of JSON."""
    device = use_target(target).devices[0]
    report = {}
    for case in (case for case in (*FAMILY_CASES, MXFP4_CASE) if not names or case.name in names):
        began_s = time.monotonic()
        settings = Settings(max_num_seqs=4, max_model_len=case.max_model_len or 40, max_prefill_tokens=32)
        spec = choose_engine_spec(
            settings,
            SimpleNamespace(uri=case.name, hub_config=config_of(case), layout=None, is_as_saved=True, draft=None),
            [device],
        )
        shapes, groups = spec.shapes, spec.layer_groups
        keys = [
            *step_keys(max(shapes.prompt_buckets), groups, shapes),
            *step_keys(max(shapes.decode_buckets), groups, shapes),
        ]
        wanted = set(map(str, keys))
        programs = [program for program in spec.programs(spec.model()) if program.name in wanted]
        compiled = compile_programs(programs, num_threads=2)
        report[case.name] = {
            "kernel": spec.kernel.name,
            "obstacle": spec.kernel.obstacle,
            "programs": sorted(compiled),
            "seconds": round(time.monotonic() - began_s, 1),
        }
        sys.stderr.write(f"{case.name} {report[case.name]}\n")
    sys.stdout.write(json.dumps(report) + "\n")


def config_of(case: FamilyCase) -> dict[str, Any]:
    """Return a case's configuration in sizes that a kernel's tiles fill."""
    sizes = {"hidden_size": 512, "intermediate_size": 512, "vocab_size": 1024, "torch_dtype": "bfloat16"}
    if case.model_type == "gpt2":
        return {**case.hub_config, "n_embd": 64 * NUM_HEADS, "n_head": NUM_HEADS, "vocab_size": 1024}
    if case.name.startswith("phi4"):  # lists of factors have as many pairs as its heads rotate
        return {**case.hub_config, "vocab_size": 1024, "torch_dtype": "bfloat16"}
    if "global_head_dim" in case.hub_config:
        sizes |= {"global_head_dim": 512}
    if case.model_type in ("bamba", "granitemoehybrid"):  # the heads of Mamba-2 share twice the hidden size
        sizes |= {"mamba_d_head": 2 * 512 // case.hub_config["mamba_n_heads"]}
    return {**case.hub_config, **sizes, "head_dim": HEAD_DIMS.get(case.model_type, USUAL_HEAD_DIM)}


if __name__ == "__main__":
    main(*sys.argv[1:])
