"""The environment variables that are not ours: jax and XLA read them."""

import os

COMPILER_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"})
# These select a device, which the bundle key names anyway, or what is logged.
HARMLESS_JAX_VARIABLES = frozenset({"JAX_PLATFORMS", "JAX_LOG_COMPILES", "JAX_LOGGING_LEVEL"})


def compiler_variables() -> dict[str, str]:
    """Return the variables that jax and XLA read themselves and that can change the compiled code."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in COMPILER_VARIABLES or (name.startswith("JAX_") and name not in HARMLESS_JAX_VARIABLES)
    }
