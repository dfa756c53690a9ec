"""Routes to handlers, whose parameters say what is read of a request.

FastAPI's router does the same, and importing it takes longer than all else that the API imports; here it only writes
the OpenAPI document (`openapi.document`), of which a route keeps what FastAPI calls the arguments of a path operation.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args, get_type_hints, override

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

type Handler = Callable[..., Awaitable[Response]]
type Read = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True)
class Depends:
    """The annotation of a parameter that is read from the request, as FastAPI has it."""

    read: Read


@dataclass(frozen=True)
class RouteFacts:
    """What the OpenAPI document says of a route."""

    tags: Sequence[str] = ()
    responses: Mapping[int | str, dict[str, Any]] = field(default_factory=dict)
    response_class: type[Response] = JSONResponse
    openapi_extra: Mapping[str, Any] | None = None


class HandlerRoute(Route):
    """A route to a handler; where GET is allowed, HEAD is, whose content the server leaves out."""

    def __init__(self, path: str, handler: Handler, method: str, facts: RouteFacts, *, include_in_schema: bool) -> None:
        super().__init__(
            path, self._answer, methods=[method], name=handler.__name__, include_in_schema=include_in_schema
        )
        self.handler, self.facts = handler, facts

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}

    async def _answer(self, request: Request) -> Response:
        return await self.handler(**{name: await read(request) for name, read in self._parameters})

    @cached_property  # the first request reads the annotations: a start has no time for them
    def _parameters(self) -> list[tuple[str, Read]]:
        hints = get_type_hints(self.handler, include_extras=True)
        return [(name, _reader(name, hints[name])) for name in inspect.signature(self.handler).parameters]


class Router:
    """The routes of one resource."""

    def __init__(self, *, tags: Sequence[str] = ()) -> None:
        self.routes: list[HandlerRoute] = []
        self._tags = tags

    def get(self, path: str, **described: Any) -> Callable[[Handler], Handler]:
        """Return what adds a handler of GET; see `_add`."""
        return self._add("GET", path, **described)

    def post(self, path: str, **described: Any) -> Callable[[Handler], Handler]:
        """Return what adds a handler of POST; see `_add`."""
        return self._add("POST", path, **described)

    def delete(self, path: str, **described: Any) -> Callable[[Handler], Handler]:
        """Return what adds a handler of DELETE; see `_add`."""
        return self._add("DELETE", path, **described)

    def _add(
        self, method: str, path: str, *, include_in_schema: bool = True, tags: Sequence[str] = (), **facts: Any
    ) -> Callable[[Handler], Handler]:
        """Return what adds a handler.

        Args:
            method: the method of its requests.
            path: their path, with the names of parameters in braces.
            include_in_schema: whether the OpenAPI document has the route.
            tags: those of the route, in addition to the router's.
            facts: see `RouteFacts`.
        """

        def add(handler: Handler) -> Handler:
            described = RouteFacts((*self._tags, *tags), **facts)
            self.routes.append(HandlerRoute(path, handler, method, described, include_in_schema=include_in_schema))
            return handler

        return add


def _reader(name: str, hint: Any) -> Read:
    """Return what reads a parameter: the request itself, a part of its path, or what its annotation reads."""
    for annotation in get_args(hint):
        if isinstance(annotation, Depends):
            return annotation.read

    async def of_path(request: Request) -> Any:
        return request if hint is Request else request.path_params[name]

    return of_path
