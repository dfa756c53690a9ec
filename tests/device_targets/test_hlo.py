"""The reading of HLO."""

import pytest

from tests.device_targets.hlo import copies_of_arguments, count_instructions, count_kernels, host_transfers, num_bytes

TEXT = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }

%fused (param_0: bf16[4096,32,128]) -> bf16[4096,32,128] {
  %param_0 = bf16[4096,32,128]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %copy.5 = bf16[4096,32,128]{2,0,1:T(8,128)(2,1)} copy(%param_0), metadata={op_name="x"}
}

ENTRY %main (p: pred[]) -> (s32[64], f32[8,2]) {
  %copy-start.2 = (f32[8,2]{1,0:S(1)}, f32[8,2]{1,0}, u32[]) copy-start(%x)
  %conditional.1 = (s32[64]{0}) conditional(%p, %a, %b), true_computation=%t
  %outfeed = token[] outfeed(%y, %token)
  %moved = f32[8,2]{1,0:S(5)} copy(%x)
}
"""

MOVING = """HloModule jit_step, is_scheduled=true

%fused (param_0: bf16[4096,32,128]) -> bf16[4096,32,128] {
  %param_0 = bf16[4096,32,128]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %copy.5 = bf16[4096,32,128]{2,0,1:T(8,128)(2,1)} copy(%param_0), metadata={op_name="x"}
}

%summed (param_0.1: bf16[4096,32,128], param_1: f32[8]) -> bf16[4096,32,128] {
  %param_1 = f32[8]{0} parameter(1)
  %param_0.1 = bf16[4096,32,128]{2,1,0} parameter(0)
  ROOT %sum = bf16[4096,32,128]{2,1,0} add(%param_0.1, %param_0.1)
}

ENTRY %main (w: bf16[4096,32,128], v: bf16[64,128], x: f32[8]) -> bf16[4096,32,128] {
  %w = bf16[4096,32,128]{2,1,0} parameter(0)
  %v = bf16[64,128]{1,0} parameter(1)
  %x = f32[8]{0} parameter(2)
  %moved = bf16[4096,32,128]{2,0,1} fusion(%w), kind=kLoop, calls=%fused
  %seen = bf16[64,128]{1,0} bitcast(%v)
  %turned = bf16[128,64]{0,1} transpose(%seen), dimensions={1,0}
  %again = bf16[4096,32,128]{0,1,2} copy(%moved)
  %made = bf16[4096,32,128]{2,1,0} fusion(%w, %x), kind=kLoop, calls=%summed
  ROOT %result = bf16[4096,32,128]{2,0,1} copy(%made)
}
"""


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("bf16[64,4096]{1,0}", 524_288),
        ("(s32[64]{0}, f32[8,2])", 256),
        ("s8[3]", 3),
        ("f8e4m3fn[2,2]", 4),
        ("pred[]", 1),
        ("token[]", 0),
    ],
)
def test_the_size_of_a_shape(shape, size):
    assert num_bytes(shape) == size


def test_copies_of_arguments_in_fusions_count_and_those_of_results_do_not():
    assert copies_of_arguments(MOVING, 2**10) == [
        "copy bf16[4096,32,128]{2,0,1:T(8,128)(2,1)}",
        "transpose bf16[128,64]{0,1}",
        "copy bf16[4096,32,128]{0,1,2}",
    ]
    assert copies_of_arguments(MOVING, 2**20) == [
        "copy bf16[4096,32,128]{2,0,1:T(8,128)(2,1)}",
        "copy bf16[4096,32,128]{0,1,2}",
    ]


def test_operations_are_counted_and_transfers_are_found():
    assert count_instructions(TEXT)["conditional"] == 1
    assert host_transfers(TEXT) == ["outfeed token[]", "copy f32[8,2]{1,0:S(5)}"]


def test_kernels_are_counted_where_they_are_called():
    assert count_kernels(CALLING) == 3


CALLING = """HloModule jit_step, is_scheduled=true

%graph (p: f32[8]) -> (f32[8], f32[8]) {
  %p = f32[8]{0} parameter(0)
  %scaled = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused
  %product = (f32[8]{0}, s8[16]{0}) custom-call(%scaled), custom_call_target="__cublas$lt$matmul"
  %first = f32[8]{0} get-tuple-element(%product), index=0
  ROOT %both = (f32[8]{0}, f32[8]{0}) tuple(%scaled, %first)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %called = (f32[8]{0}, f32[8]{0}) call(%x), to_apply=%graph
  %second = f32[8]{0} get-tuple-element(%called), index=1
  ROOT %copied = f32[8]{0} copy(%second)
}
"""
