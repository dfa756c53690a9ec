"""Whole steps of models of 1 and 8 billion parameters, compiled for machines that are not there.

`make test-all` installs the compilers into `.tools/targets`; without one its tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from scripts.memory_table import MODELS
from service.settings import Settings

ROOT = Path(__file__).parents[2]
SMALL, LARGE = "Llama 3.2 1B", "Llama 3.1 8B"
RECURRENT = "Qwen3.5 4B"
STEPS = [
    *(("triton", target, model, "auto", 0) for target in ("l4", "h100", "rtx-pro-6000") for model in (SMALL, LARGE)),
    ("triton", "h100", LARGE, "auto", 4),
    ("triton", "l4", f"{LARGE}, 4 bits", "auto", 0),
    ("triton", "h100", f"{LARGE}, 4 bits", "auto", 4),
    ("triton", "h100", LARGE, "fp8", 0),
    ("ragged", "v5e-1", SMALL, "auto", 0),  # the larger one does not fit
    ("ragged", "v5e-4", LARGE, "auto", 0),
    ("ragged", "v6e-1", SMALL, "auto", 0),
    ("ragged", "v6e-1", LARGE, "auto", 0),
    ("ragged", "v6e-1", SMALL, "auto", 4),
    ("kv8", "v5e-4", LARGE, "int8", 0),
    ("kv8", "v5e-4", RECURRENT, "auto", 0),
    ("kv8", "v6e-1", SMALL, "fp8", 0),
]
MOST_KERNELS = (560, 400)  # of a decode step of 8B in bfloat16, of one sequence and of 64
MOST_BESIDE = 0.05  # of the bytes of weights, that a decode step writes besides: no weight is widened in memory
PADDING = 1.02  # that the layout of an array on a TPU may add
SAMPLERS = ("general", "greedy", "random", "top-p")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kernel", "target", "model", "kv_dtype", "max_loras"), STEPS)
def test_steps_compile_into_what_the_planner_expects(kernel, target, model, kv_dtype, max_loras):
    platform = "gpu" if kernel == "triton" else "tpu"
    report = compile_steps(platform, target, model, kv_dtype, max_loras)
    programs = report["programs"]
    assert report["kernel"] == kernel
    assert {name.partition("-seqs")[0] for name in programs} >= {"embed", *(f"sample-{name}" for name in SAMPLERS)}
    assert [fault for name, facts in programs.items() for fault in faults(name, facts, platform)] == []
    # All of a decode step is one program on a GPU, whichever way its tokens are chosen, unless it takes masks.
    whole = [name.partition("-seqs")[0] for name in programs if name.startswith("whole")]
    assert sorted(whole) == (["whole-greedy", "whole-random", "whole-top-p"] if platform == "gpu" else [])
    layers = next(facts for name, facts in programs.items() if name.startswith("layers"))
    caches_bytes = layers["changed_bytes"] / report["layer_fraction"]
    if platform == "gpu":
        [of_all_layers] = (facts for name, facts in programs.items() if name.startswith("whole-greedy"))
        assert of_all_layers["aliased_bytes"] >= caches_bytes
        if (model, kv_dtype, max_loras) == (LARGE, "auto", 0):
            assert all(count <= most for count, most in zip(report["kernels"], MOST_KERNELS, strict=True))
    kept_bytes = report["weights_bytes"] + caches_bytes
    running = [facts for name, facts in programs.items() if not name.startswith("initial")]  # those make the caches
    largest = max(
        facts["temp_bytes"] + facts["output_bytes"] - facts["aliased_bytes"]
        for facts in (*running, *report["of_one_sequence"])
    )
    assert kept_bytes + largest <= report["usable_bytes"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("target", "model", "quantizations"), [("h100", LARGE, ("int8", "fp8")), ("l4", SMALL, ("int8",))]
)
def test_a_decode_step_reads_weights_of_8_bits_in_hardly_more_kernels_than_those_of_16(target, model, quantizations):
    wide = compile_steps("gpu", target, model)["kernels"]
    for quantization in quantizations:
        report = compile_steps("gpu", target, model, quantization=quantization)
        [largest] = (facts for name, facts in report["programs"].items() if name.startswith("whole-greedy"))
        num_layers = MODELS[model]["num_hidden_layers"]
        assert all(own <= other + num_layers for own, other in zip(report["kernels"], wide, strict=True)), report
        for facts in (*report["of_one_sequence"], largest):
            assert facts["large_copies"] == []
            assert facts["temp_bytes"] <= MOST_BESIDE * report["weights_bytes"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("target", "model"), [("v6e-1", SMALL), ("v6e-8", LARGE)])
def test_the_largest_steps_of_the_usual_slots_compile(target, model):
    programs = compile_steps("tpu", target, model, num_seqs=Settings().max_num_seqs)["programs"]
    assert {name.rpartition("-")[2] for name in programs if name.startswith("layers")} == {"rows16", "rows32"}


def faults(name: str, facts: dict, platform: str) -> list[str]:
    """Say what is wrong with a program."""
    is_step = not name.startswith(("sample", "initial"))
    found = {
        "does not reuse its state": facts["aliased_bytes"] < facts["changed_bytes"],
        "copies a weight or cache": is_step and facts["large_copies"],
        "branches": facts["conditionals"],
        "computes again what it had": platform == "gpu" and facts["rematerialized"],
        "asks the host whether to loop": platform == "gpu" and facts["unbounded_loops"],
        "waits for the host": facts["host_transfers"],
        "pads its arguments": facts["argument_bytes"] > PADDING * facts["needed_argument_bytes"] + 2**20,
    }
    return [f"{name} {fault}: {facts}" for fault, is_found in found.items() if is_found]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [SMALL, f"{LARGE}, 4 bits"])
def test_steps_for_an_l4_compile_with_the_tools_of_cuda_12_too(model):
    report = compile_steps("gpu12", "l4", model)
    assert report["kernel"] == "triton"
    assert [fault for name, facts in report["programs"].items() for fault in faults(name, facts, "gpu")] == []


def target_python(platform: str) -> Path:
    """Return the interpreter that has a platform's compiler; skip the test if there is none."""
    python = ROOT / ".tools" / "targets" / platform / "bin" / "python"
    if not python.exists():
        pytest.skip(f"the compiler for a {platform} is not installed: make .tools/targets/{platform}")
    return python


def compile_steps(
    platform: str,
    target: str,
    model: str,
    kv_dtype: str = "auto",
    max_loras: int = 0,
    num_seqs: int = 64,
    quantization: str = "none",
) -> dict:
    """Compile in a process that has the compiler."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    module = "tests.device_targets.compile_steps"
    command = [
        target_python(platform),
        "-m",
        module,
        target,
        model,
        kv_dtype,
        str(max_loras),
        str(num_seqs),
        quantization,
    ]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)
