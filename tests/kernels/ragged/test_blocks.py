"""The sizes of blocks on each chip."""

import pytest

from service.device.chips import V5E, V6E
from service.kernels.ragged.blocks import MIB, choose_block

HEAD_BYTES = 2 * 128 * 2  # a key and a value of a token


def block(page_size, num_heads, group, *, chip=V5E.device_kind, context_pages=10_000, num_tokens=64):
    return choose_block(
        chip,
        page_size=page_size,
        num_heads=num_heads,
        group=group,
        page_bytes=page_size * num_heads * HEAD_BYTES,
        context_pages=context_pages,
        num_tokens=num_tokens,
    )


@pytest.mark.parametrize("chip", [V5E.device_kind, V6E.device_kind])
@pytest.mark.parametrize(
    ("page_size", "num_heads", "group", "positions"),
    [(16, 8, 4, 512), (64, 8, 4, 1024), (128, 8, 4, 1024), (128, 4, 7, 2048), (256, 1, 8, 4096), (128, 2, 16, 2048)],
)
def test_a_block_is_as_large_as_pages_buffers_and_scores_allow(chip, page_size, num_heads, group, positions):
    chosen = block(page_size, num_heads, group, chip=chip)
    assert chosen == (positions // page_size, 32, 32 * MIB)


def test_an_unknown_chip_gets_small_blocks_and_the_default_memory():
    assert block(64, 8, 4, chip="TPU v4") == (8, 32, None)


def test_a_block_holds_no_more_than_there_is():
    assert block(16, 8, 4, context_pages=3, num_tokens=1) == (3, 1, 32 * MIB)
    assert block(256, 8, 128).num_queries == 1
