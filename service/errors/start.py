"""Errors in settings, the port and device memory that abort the start."""

import errno
import socket

from service.errors.root import ServiceError


class StartError(ServiceError):
    """The service cannot start; the message states cause and remedy in one line."""


class SettingsError(StartError):
    """A setting is unknown, malformed or contradicts another."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"{variable}: {reason}")
        self.variable = variable


class CannotListen(StartError):
    """The port cannot be opened: another process has it, it needs privileges, or the host is not this machine's."""

    def __init__(self, host: str, port: int, cause: str, remedy: str) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {cause}. {remedy}")
        self.host = host
        self.port = port

    @staticmethod
    def because(
        error: OSError, host: str, port: int, *, host_source: str = "", variable: str = "PORT"
    ) -> "CannotListen":
        """Return the error for what the system says.

        Args:
            error: of opening the port.
            host: the address.
            port: the port.
            host_source: where the host was set, such as "HOST in the environment"; empty for the default.
            variable: the setting of the port.
        """
        cause = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            return PortInUse(host, port, cause, f"Stop the process that uses it, or set {variable} to a free one.")
        if error.errno in (errno.EACCES, errno.EPERM):
            return CannotListen(
                host, port, cause, f"Ports below 1024 are the administrator's: set {variable} to another."
            )
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            named = f"The host is from {host_source}; it" if host_source else "The host"
            cause = f"{cause}. {named} is no address of this machine"
        remedy = (
            "Set LEVSERVE_HOST, which goes before HOST, or --host to an address of this machine, such as 127.0.0.1."
        )
        return CannotListen(host, port, cause, remedy)


class PortInUse(CannotListen):
    """Another process listens on the port."""


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
    """The machine has an accelerator, and JAX's plugin for it is installed, but JAX found only a CPU."""

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
