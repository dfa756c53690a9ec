"""Random bits as a function of a seed and a counter: Threefry-2x32 with 20 rounds.

`jax.random` computes the same function in a loop on a CPU, of many kernels, each of which XLA compiles for some 20 ms;
here the rounds are unrolled into one kernel.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.2, table 2.
"""

import jax.numpy as jnp
from jaxtyping import Array, UInt

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits; the two quadruples of rounds take turns
NUM_QUADRUPLES = 5
PARITY = 0x1BD11BDA


def threefry_2x32(
    seeds: UInt[Array, "*batch 2"], counters: UInt[Array, "*batch 2"]
) -> tuple[UInt[Array, "*batch"], UInt[Array, "*batch"]]:
    """Return two words of random bits for each seed and counter."""
    keys = [seeds[..., 0], seeds[..., 1]]
    keys.append(keys[0] ^ keys[1] ^ jnp.uint32(PARITY))
    first, second = counters[..., 0] + keys[0], counters[..., 1] + keys[1]
    for quadruple in range(NUM_QUADRUPLES):
        for bits in ROTATIONS[quadruple % 2]:
            first = first + second
            second = (second << bits | second >> (32 - bits)) ^ first
        injected = quadruple + 1
        first = first + keys[injected % 3]
        second = second + keys[(injected + 1) % 3] + jnp.uint32(injected)
    return first, second
