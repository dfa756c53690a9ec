"""The service behind the API: its state, and the models that requests lease."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from service.api.served import Served
from service.errors import ServiceError


class Lease:
    """A loaded model that stays loaded until `release`."""

    def __init__(self, model: Served, on_release: Callable[[], None] = lambda: None) -> None:
        self.model = model
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Let the model be unloaded; a second call does nothing."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """A model as /v1/models shows it."""

    names: tuple[str, ...]  # the first is its own
    created: int  # Unix time of the load, or of the start if it is not loaded
    state: Literal["available", "loading", "ready"]
    max_model_len: int | None  # tokens; None if it is not known before the model has been loaded
    facts: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None  # the name of the model that its adapter updates

    @property
    def inputs(self) -> Sequence[str]:
        """What the model takes."""
        return self.facts.get("modalities", {}).get("input", ("text",))


@runtime_checkable
class Backend(Protocol):
    """What the API needs of the service, which knows how many models there are and how they are loaded."""

    @property
    def is_live(self) -> bool:
        """False once the device thread has ended: the platform should restart the process."""
        ...

    @property
    def is_ready(self) -> bool:
        """True from the moment that READY_WHEN names until the drain."""
        ...

    @property
    def status(self) -> str:
        """`starting`, then `answering` from the first real token on, `complete` once nothing is left to compile."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return the phases of the start as a JSON object."""
        ...

    def check_open(self) -> None:
        """Raise NotReady, Draining or EngineStopped if no model can answer, whichever a request names."""
        ...

    def lease(self, name: str | None) -> Lease | None:
        """Return a loaded model; None if it is not loaded yet.

        Args:
            name: the `model` of the request; None for the only model.

        Raises:
            UnknownModel, AmbiguousModel: no model, or several, have this name.
            MissingParameter: there are several models, and the request names none.
        """
        ...

    async def wait_for(self, name: str | None) -> Lease:
        """Return a model once it is loaded; raises as `lease`, and if it cannot be loaded."""
        ...

    def listed(self) -> Sequence[ModelState]:
        """Return every model."""
        ...


class OneModel:
    """The `Backend` of a process with a single model, which is loaded."""

    is_live = is_ready = True
    status = "complete"

    def __init__(self, model: Served) -> None:
        self.model = model

    def progress(self) -> dict[str, Any]:
        """Return nothing, since the start is over."""
        return {}

    def check_open(self) -> None:
        """Do nothing; see `Backend.check_open`."""

    def lease(self, name: str | None) -> Lease:
        """Return the model; raises UnknownModel if a request names another."""
        self.check_open()
        if name is not None:
            self.model.check_name(name)
        return Lease(self.model)

    async def wait_for(self, name: str | None) -> Lease:
        """Return the model, as `lease`."""
        return self.lease(name)

    def listed(self) -> Sequence[ModelState]:
        """Return the model."""
        self.check_open()
        return [ready_state(self.model)]


def ready_state(model: Served) -> ModelState:
    """Return the state of a loaded model."""
    return ModelState(
        names=model.names,
        created=model.created,
        state="ready",
        max_model_len=model.max_model_len,
        facts={"capabilities": list(model.capabilities), **model.facts},
    )


def may_see(backend: Backend) -> bool:
    """Return whether a model takes images; one that is not loaded may."""
    try:
        listed = backend.listed()
    except ServiceError:
        return False  # no model can answer now
    return any(state.state != "ready" or "image" in state.inputs for state in listed)
