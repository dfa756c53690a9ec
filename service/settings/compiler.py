"""Environment variables that jax, XLA and libtpu read."""

import os

COMPILER_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"})
# These select a device, which the bundle key contains anyway, or configure logging.
HARMLESS_JAX_VARIABLES = frozenset({"JAX_PLATFORMS", "JAX_LOG_COMPILES", "JAX_LOGGING_LEVEL"})
# The fraction of a GPU's memory for XLA's pool, and its older name; setting both is an error.
# Source: https://github.com/jax-ml/jax/blob/main/jaxlib/xla_client.py (generate_pjrt_gpu_plugin_options)
POOL_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

# With 1, XLA launches a GPU's programs from its own thread, so the caller can dispatch the next one meanwhile.
# Source: https://github.com/openxla/xla/blob/main/xla/pjrt/gpu/se_gpu_pjrt_client.cc (GetStreamExecutorGpuClient)
ASYNC_DISPATCH_VARIABLE = "PJRT_GPU_ENABLE_ASYNC_DISPATCH"

# Machine properties that libtpu would query from Google's metadata server.
# Source: https://github.com/jax-ml/jax/blob/main/jax/_src/cloud_tpu_init.py
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v6e-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes may compile, since none uses a chip
}

# The first of the best tiles that compiles, rather than the smallest one, which is the default.
# Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/autotuner/triton.cc (GetDefaultConfig)
TILES_BY_COST_MODEL = "--xla_gpu_experimental_cost_model_gemm_tiling_options=top=16"


def compiler_variables() -> dict[str, str]:
    """Return the variables read by jax and XLA that can affect compiled code."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in COMPILER_VARIABLES or (name.startswith("JAX_") and name not in HARMLESS_JAX_VARIABLES)
    }


def names_platform() -> bool:
    """Return whether the operator has chosen the platforms that JAX may use."""
    return bool(os.environ.get("JAX_PLATFORMS"))


def size_gpu_pool(fraction: float) -> None:
    """Set the fraction of a GPU's memory for XLA's pool, 0.75 by default; call this before jax finds its devices.

    An XLA variable set by the operator takes precedence.
    """
    if not any(os.environ.get(name) for name in POOL_VARIABLES):
        os.environ[POOL_VARIABLES[0]] = str(fraction)


def dispatch_to_gpus_asynchronously() -> None:
    """Let calls return before XLA has launched a GPU's program; call this before jax finds its devices.

    A value set by the operator takes precedence.
    """
    os.environ.setdefault(ASYNC_DISPATCH_VARIABLE, "1")


def estimate_tiles() -> None:
    """Have XLA choose the tiles of its own products by its cost model, for a GPU on which it cannot time them.

    The option is a map, which only the variable can set.
    """
    set_flag(TILES_BY_COST_MODEL)


def set_flag(flag: str) -> None:
    """Set a flag of XLA for this process; call this before jax looks for devices.

    XLA reads the variable once per process, here, and it is as before then, since bundles have it in their keys.
    """
    from jaxlib import xla_client

    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} {flag}".strip()
    try:
        xla_client.CompileOptions()
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


def describe_no_tpu() -> None:
    """Let libtpu compile on a machine without a TPU, without querying Google's metadata server."""
    for name, value in WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
