"""Errors in settings, the port and device memory that abort the start."""

from service.errors.root import ServiceError


class StartError(ServiceError):
    """The service cannot start; the message states cause and remedy in one line."""


class SettingsError(StartError):
    """A setting is unknown, malformed or contradicts another."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"{variable}: {reason}")
        self.variable = variable


class PortInUse(StartError):
    """The port cannot be opened, usually because another process listens on it."""

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(
            f"cannot listen on {host} port {port}: {cause}. "
            "Stop the process that uses it, or set PORT (or HOST) to a free one."
        )
        self.host = host
        self.port = port


class UnknownDeviceMemory(StartError):
    """An accelerator does not report its memory size, so the KV cache cannot be planned."""

    def __init__(self, platform: str, device_kind: str) -> None:
        super().__init__(
            f"the {platform} device {device_kind!r} does not report its memory, so the cache cannot be planned. "
            "Check its driver, and that XLA_PYTHON_CLIENT_ALLOCATOR is not 'platform'; or set JAX_PLATFORMS=cpu."
        )
        self.platform = platform
        self.device_kind = device_kind


class UnusableAccelerator(StartError):
    """The machine has an accelerator, and JAX's plugin for it is installed, but JAX found a CPU alone."""

    def __init__(self, device_file: str, package: str) -> None:
        super().__init__(
            f"this machine has {device_file} and {package} is installed, but JAX finds no accelerator. The driver may "
            "be too old for it: take an image for an older CUDA (ACCELERATOR=cuda12), or a newer driver. Set "
            "JAX_PLATFORMS=cpu to serve on the processor."
        )
        self.device_file = device_file
        self.package = package


class TargetUnavailable(StartError):
    """Programs for the target machine cannot be compiled on this one."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"--target {target}: cannot compile without the device: {reason}.")
        self.target = target
        self.reason = reason


class DoesNotFit(StartError):
    """The weights and the smallest useful KV cache exceed the memory of each device."""

    def __init__(self, *, needed_bytes: int, available_bytes: int, remedy: str) -> None:
        super().__init__(
            f"the model needs {needed_bytes:,} bytes on each device, but {available_bytes:,} are available. {remedy}"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
