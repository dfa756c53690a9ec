"""Products with weights in 8 and 4 bits, compiled for machines that are not there: weights are read as they are stored.

`make test-all` installs the compilers into `.tools/targets`; without one its tests are skipped.
"""

import json
import math
import os
import re
import subprocess

import pytest

from tests.device_targets.test_compiled_steps import ROOT, target_python

TILE = re.compile(r'"output_tiles":\[\{"sizes":\["(\d+)","(\d+)"')
TARGETS = [("gpu", "l4", "native"), ("gpu", "h100", "native"), ("tpu", "v5e-1", "fused"), ("tpu", "v6e-1", "fused")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("platform", "target", "fp8"), TARGETS)
def test_a_product_reads_the_octets_of_its_weight_and_keeps_no_wider_copy(platform: str, target: str, fp8: str):
    report = compile_products(platform, target)
    assert report["fp8"] == fp8
    name_of = {"int8": "s8", "fp8": "f8e4m3fn"}  # in HLO
    in_4_bits = {name: facts for name, facts in report["products"].items() if name.startswith(("int4", "fp4"))}
    if platform == "gpu":
        # Products of any number of tokens, whose tiles are not the smallest.
        assert [name for name, facts in in_4_bits.items() if facts["kept"]] == []
        in_fp4 = {name: facts for name, facts in in_4_bits.items() if name.startswith("fp4")}
        assert [facts["kernels"] for facts in in_fp4.values()] == [1, 1]
        tiles = [TILE.findall(facts["entry"]) for name, facts in in_4_bits.items() if "16 groups, 512" in name]
        assert [[math.prod(map(int, tile)) >= 64 * 64 for tile in found] for found in tiles] == [[True]]
    for name, facts in report["products"].items():
        if name in in_4_bits:
            continue
        # The weight itself may be moved closer to the processor; nothing as large has wider elements.
        assert set(facts["kept"]) <= {name_of[name.partition(",")[0]]}, (name, facts["entry"])
        assert facts["temp_bytes"] < report["weight_elements"] * 1.1, name
        if platform == "gpu" and name == "int8, 64":
            assert facts["kernels"] == 1, facts["entry"]
    for name, facts in report["attention"].items():
        # Its octets are the cache itself, which Triton writes as bytes, and no copy. A TPU's are in words, a quarter
        # as many.
        kept = {"int8": ["s8"], "float8_e4m3fn": ["f8e4m3fn", "u8"]}[name]
        assert facts["kept"] == (kept if platform == "gpu" else []), facts["entry"]
        # A GPU's splits leave their partial results to their join: 2 MiB here, an eighth of the cache.
        assert facts["temp_bytes"] < report["weight_elements"] / 4, name


def compile_products(platform: str, target: str) -> dict:
    """Compile in a process that has the compiler."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python(platform), "-m", "tests.device_targets.compile_products", target]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)
