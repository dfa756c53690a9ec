"""Up to how many tokens a GPU multiplies by weights in 8 bits faster without quantizing tokens, as a table to keep."""

import statistics
import sys
import time
from functools import partial
from itertools import takewhile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device_check.report import Row, write_part
from service.compile.aot import compiler_options
from service.device.mesh import DeviceMesh
from service.device.widened_tokens import FILE, NEVER_WIDENED, WidenedTokens, written_table
from service.kernels.products.linear import Products, linear
from service.kernels.products.quantized import FP8, QuantizedWeight, choose_fp8_products

SIZE, TINY_SIZE = (14_336, 4096), (256, 128)  # of a weight; the larger one of Llama 3.1 8B
NUM_WEIGHTS, ROUNDS = 8, 9  # weights of a call, so that its launch is not what is measured
TOKENS, TINY_TOKENS = (1, 4, 16, 32, 48, 64, 96, 128, 192, 256), (1, 64)
DTYPES = {"int8": jnp.int8, "fp8": FP8}


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure both ways for each number of tokens."""
    device = jax.devices()[0]
    rows, most = [], {}
    for name, dtype in DTYPES.items():
        times = {number: _times(number, dtype, is_tiny=is_tiny) for number in (TINY_TOKENS if is_tiny else TOKENS)}
        rows += [_row(name, number, *both) for number, both in times.items()]
        faster = list(takewhile(lambda number, times=times: times[number][0] <= times[number][1], times))
        most[name] = faster[-1] if faster else 0
        write_part(out, "widened", rows)
    if device.platform == "gpu":
        (out / FILE.name).write_text(written_table(device.device_kind, WidenedTokens(**most)))


def _row(name: str, num_tokens: int, widened_s: float, quantized_s: float) -> Row:
    return {
        "check": f"{num_tokens} tokens by {name}",
        "passed": True,
        "widened, us": round(widened_s * 1e6, 1),
        "quantized, us": round(quantized_s * 1e6, 1),
        "ratio": round(widened_s / quantized_s, 3),
    }


def _times(num_tokens: int, dtype: object, *, is_tiny: bool) -> tuple[float, float]:
    """Return the seconds of a product with tokens as they are, and with quantized ones; rounds alternate."""
    device, size = jax.devices()[0], TINY_SIZE if is_tiny else SIZE
    random = np.random.RandomState(0)
    x = jnp.asarray(random.randn(num_tokens, size[1]), jnp.bfloat16)
    values = jnp.asarray(random.randint(-100, 101, size)).astype(dtype)
    weights = [QuantizedWeight(values + values.dtype.type(0), jnp.ones(size[0])) for _ in range(NUM_WEIGHTS)]
    fp8 = choose_fp8_products(DeviceMesh((device,)))
    runs = []
    for widened in (WidenedTokens(num_tokens, num_tokens), NEVER_WIDENED):
        product = partial(linear, products=Products(widened_tokens=widened), fp8=fp8)
        lowered = jax.jit(lambda x, weights, product=product: [product(x, own) for own in weights]).lower(x, weights)
        options = compiler_options(device, widens_weights=widened is not NEVER_WIDENED)
        runs.append(lowered.compile(options))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(1 + ROUNDS):  # the first warms up
        for run, of_run in zip(runs, seconds, strict=True):
            began_s = time.perf_counter()
            jax.block_until_ready(run(x, weights))
            of_run.append((time.perf_counter() - began_s) / NUM_WEIGHTS)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
