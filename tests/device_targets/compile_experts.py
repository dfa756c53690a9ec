"""Compile decode steps of a mixture of experts for a GPU that is not there, and print the kernels of a layer.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/gpu/bin/python -m tests.device_targets.compile_experts h100 "Qwen3 30B-A3B" 1 16 64

A layer's kernels are the difference between steps of four layers and of two.
"""

import json
import sys
from types import SimpleNamespace

from scripts.memory_table import MODELS
from service.compile.aot import compile_programs
from service.settings import Settings
from service.start.devices import use_target
from service.start.kinds.engine_spec import choose_engine_spec
from tests.device_targets.compile_steps import few_layers, whole_step_of
from tests.device_targets.hlo import count_instructions, count_kernels


def main(target: str, model: str, *num_seqs: str) -> None:
    """Compile, and print a line of JSON."""
    located = SimpleNamespace(uri=model, hub_config=dict(MODELS[model]), layout=None, is_as_saved=True, draft=None)
    spec = choose_engine_spec(Settings(max_num_seqs=64), located, use_target(target).devices)
    report = {}
    for bucket in (one for one in spec.shapes.decode_buckets if str(one.num_seqs) in num_seqs):
        kernels, loops = [], 0
        for num_layers in (2, 4):
            [program] = whole_step_of(few_layers(spec, num_layers), bucket)
            compiled = compile_programs([program], num_threads=1)[program.name].executable.compiled
            text = compiled.as_text()
            kernels.append(count_kernels(text))
            loops = count_instructions(text)["while"]
        report[bucket.num_seqs] = {
            "kernels_of_layer": (kernels[1] - kernels[0]) / 2,
            "loops": loops,
            "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
