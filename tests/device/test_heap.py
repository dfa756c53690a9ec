import sys

import psutil
import pytest

from service.device.heap import return_freed_memory

BLOCK_BYTES, NUM_BLOCKS, KEPT_EVERY = 100_000, 2000, 50


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no malloc_trim")
def test_what_was_freed_between_blocks_in_use_goes_back_to_the_system():
    process = psutil.Process()
    blocks = [b"x" * BLOCK_BYTES for _ in range(NUM_BLOCKS)]
    kept = blocks[::KEPT_EVERY]
    blocks.clear()
    before = process.memory_info().rss
    return_freed_memory()
    freed = before - process.memory_info().rss
    assert freed > BLOCK_BYTES * NUM_BLOCKS // 2
    assert {block[-1:] for block in kept} == {b"x"}
