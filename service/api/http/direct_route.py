"""Routes whose dependencies need nothing but the request: called in order, without FastAPI's solver.

The solver looks each time for parameters, forms, caches and generators that these routes do not have.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, override

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response


class DirectRoute(APIRoute):
    """A route whose every parameter is `Depends` on a coroutine function of the request."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests.

        Source: https://fastapi.tiangolo.com/how-to/custom-request-and-route/
        """
        parameters = self.dependant
        assert not [*parameters.path_params, *parameters.query_params, *parameters.body_params], self.path
        dependencies: list[tuple[str, Callable[[Request], Awaitable[Any]]]] = [
            (dependency.name, dependency.call)
            for dependency in parameters.dependencies
            if dependency.name is not None and dependency.call is not None
        ]
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            return await endpoint(**{name: await call(request) for name, call in dependencies})

        return handle
