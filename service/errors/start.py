"""Why a start stops, raised by what reads settings, opens the port or makes room on the devices."""

from service.errors.root import ServiceError


class StartError(ServiceError):
    """The service cannot start; the message is one line with cause and remedy."""


class SettingsError(StartError):
    """A setting is unknown, malformed or contradicts another."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"{variable}: {reason}")
        self.variable = variable


class PortInUse(StartError):
    """We may not listen where we should; as a rule because another process does."""

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(
            f"cannot listen on {host} port {port}: {cause}. Stop what uses it, or set PORT (or HOST) to a free one."
        )
        self.host = host
        self.port = port


class DoesNotFit(StartError):
    """The weights and the smallest useful KV cache need more memory than each device has."""

    def __init__(self, *, needed_bytes: int, available_bytes: int, remedy: str) -> None:
        super().__init__(
            f"the model needs {needed_bytes:,} bytes on each device and {available_bytes:,} are there. {remedy}"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
