"""Models as requests hold them: found by name, waited for while they load, and kept loaded until the answer has ended.

The API asks through the `Models` protocol, so it does not know how many models there are or how they are loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, override, runtime_checkable

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.served import Served

# The scope's entry for the models that a request holds.
HELD = "levserve.held"


class Held:
    """A loaded model that stays loaded until `release`."""

    def __init__(self, model: Served, on_release: Callable[[], None] = lambda: None) -> None:
        self.model = model
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Let the model go; a second call does nothing."""
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


@runtime_checkable
class Models(Protocol):
    """The models that requests may name."""

    def check_open(self) -> None:
        """Raise NotReady, Draining or EngineStopped if no model can answer, whichever a request names."""
        ...

    def hold(self, name: str | None) -> Held | None:
        """Return a loaded model; None if it has to be waited for.

        Args:
            name: of the request; None for the only model.

        Raises:
            UnknownModel, AmbiguousModel: no model, or several, have this name.
            MissingParameter: there are several models, and the request names none.
        """
        ...

    async def wait_for(self, name: str | None) -> Held:
        """Return a model once it is loaded; raises as `hold`, and if it does not come."""
        ...

    def listed(self) -> Sequence[ModelState]:
        """Return every model."""
        ...


class OneModel(Models):
    """The `Models` of a process with a single one, which `served_model` returns."""

    def served_model(self) -> Served:
        """Return the model; raises NotReady, Draining or EngineStopped if it cannot answer."""
        raise NotImplementedError

    @override
    def check_open(self) -> None:
        self.served_model()

    @override
    def hold(self, name: str | None) -> Held:
        model = self.served_model()
        if name is not None:
            model.check_name(name)
        return Held(model)

    @override
    async def wait_for(self, name: str | None) -> Held:
        return self.hold(name)

    @override
    def listed(self) -> Sequence[ModelState]:
        return [ready_state(self.served_model())]


def ready_state(model: Served) -> ModelState:
    """Return the state of a loaded model."""
    return ModelState(
        names=model.names,
        created=model.created,
        state="ready",
        max_model_len=model.max_model_len,
        facts={"capabilities": list(model.capabilities), **model.facts},
    )


class ReleaseModels:
    """ASGI middleware that releases what a request held once its answer has ended, in whatever way."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        held: list[Held] = []
        scope[HELD] = held
        try:
            await self._app(scope, receive, send)
        finally:
            for model in held:
                model.release()
