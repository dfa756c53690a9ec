"""The reading of HLO."""

import pytest

from tests.device_targets.hlo import copies_from, count_instructions, host_transfers, num_bytes

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


def test_copies_in_fusions_count():
    assert copies_from(TEXT, 2**20) == ["copy bf16[4096,32,128]{2,0,1:T(8,128)(2,1)}"]
    assert len(copies_from(TEXT, 1)) == 2
    assert copies_from(TEXT, 2**20, 4096 * 32 * 128) == []


def test_operations_are_counted_and_transfers_are_found():
    assert count_instructions(TEXT)["conditional"] == 1
    assert host_transfers(TEXT) == ["outfeed token[]", "copy f32[8,2]{1,0:S(5)}"]
