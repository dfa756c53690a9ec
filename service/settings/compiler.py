"""The environment variables that are not ours: jax and XLA read them."""

import os

COMPILER_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"})
# These select a device, which the bundle key names anyway, or what is logged.
HARMLESS_JAX_VARIABLES = frozenset({"JAX_PLATFORMS", "JAX_LOG_COMPILES", "JAX_LOGGING_LEVEL"})
# The fraction of a GPU's memory that XLA's pool takes, and its older name, beside which the new one is an error.
# Source: https://github.com/jax-ml/jax/blob/main/jaxlib/xla_client.py (generate_pjrt_gpu_plugin_options)
POOL_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

# With 1, a GPU's programs start on a thread of XLA's and not on the caller's, which so starts the next while one runs.
# Source: https://github.com/openxla/xla/blob/main/xla/pjrt/gpu/se_gpu_pjrt_client.cc (GetStreamExecutorGpuClient)
ASYNC_DISPATCH_VARIABLE = "PJRT_GPU_ENABLE_ASYNC_DISPATCH"

# What libtpu reads about its machine, for one outside of Google's cloud.
# Source: https://github.com/jax-ml/jax/blob/main/jax/_src/cloud_tpu_init.py
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # a second process may compile, since none holds a chip
}


def compiler_variables() -> dict[str, str]:
    """Return the variables that jax and XLA read themselves and that can change the compiled code."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in COMPILER_VARIABLES or (name.startswith("JAX_") and name not in HARMLESS_JAX_VARIABLES)
    }


def size_gpu_pool(fraction: float) -> None:
    """Have XLA's pool take this fraction of a GPU's memory, rather than 0.75; call this before jax finds its devices.

    A variable of XLA's own that the operator has set stays.
    """
    if not any(os.environ.get(name) for name in POOL_VARIABLES):
        os.environ[POOL_VARIABLES[0]] = str(fraction)


def dispatch_to_gpus_asynchronously() -> None:
    """Have calls return before XLA has started a GPU's program; call this before jax finds its devices.

    A value that the operator has set stays.
    """
    os.environ.setdefault(ASYNC_DISPATCH_VARIABLE, "1")


def describe_no_tpu() -> None:
    """Have libtpu compile on a machine that has no TPU, without asking Google's metadata server about it."""
    for name, value in WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
