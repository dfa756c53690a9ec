"""What a plan says of the attention kernel: the slow way is never taken in silence."""

import logging
from types import SimpleNamespace

import numpy as np

from service.engine_plan import _choose_kernel
from service.kernels.choice import KernelName
from service.models.registry import read_config
from tests.parity.cases import CASES

CONFIG = read_config("test", next(c for c in CASES if c.name == "llama_grouped_heads").hub_config)
BFLOAT16 = np.dtype("bfloat16")


def device(platform, kind, **attributes):
    return SimpleNamespace(
        platform=platform, device_kind=kind, client=None, memory_stats=lambda: None, id=0, **attributes
    )


def test_the_slow_reference_is_a_warning_that_tells_why(caplog):
    choice = _choose_kernel(CONFIG, BFLOAT16, device("gpu", "Tesla T4", compute_capability="7.5"))
    assert choice.name is KernelName.REFERENCE
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Tesla T4 (compute capability 7.5)" in record.reason


def test_the_kernel_and_its_padding_are_told(caplog):
    caplog.set_level(logging.INFO)
    choice = _choose_kernel(CONFIG, BFLOAT16, device("tpu", "TPU v5 lite"))
    assert choice.name is KernelName.RAGGED
    (record,) = caplog.records
    assert (record.levelno, record.kernel) == (logging.INFO, "ragged")
    assert (record.head_dim, record.cached_head_dim) == (CONFIG.head_dim, 128)
