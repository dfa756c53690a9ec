"""The line that `levserve --version` prints; no device is started."""

import platform
from importlib.metadata import PackageNotFoundError, version

ACCELERATORS = {"jax-cuda12-plugin": "CUDA 12", "jax-cuda13-plugin": "CUDA 13", "libtpu": "TPU"}
EXTRAS = {"marin-levanter": "levanter", "av": "media", "opentelemetry-sdk": "otel"}


def version_line() -> str:
    """Return the versions of Levserve, JAX and Python, the device that JAX is installed for, and the extras."""
    from service.device.native.library import native_code

    devices = [name for package, name in ACCELERATORS.items() if _version(package)]
    extras = [name for package, name in EXTRAS.items() if _version(package)]
    native = "with" if native_code().has_products else "without"
    return (
        f"levserve {_version('levserve') or 'unknown'} (JAX {_version('jax')} for {', '.join(devices) or 'CPU'}, "
        f"Python {platform.python_version()}, {native} native code; extras: {', '.join(extras) or 'none'})"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
