"""FastAPI dependencies of the handlers: the state that all requests share, and the call of one."""

from typing import Annotated

from fastapi import Depends, Request

from service.api.http.call import ApiContext, Call, call_of


async def api_context(request: Request) -> ApiContext:
    """Return the state that all requests share."""
    return request.app.state.context


async def open_call(request: Request) -> Call:
    """Begin to answer a request by models, and return its call.

    Raises:
        NotReady, Draining, EngineStopped: no model can answer now.
    """
    call = call_of(request.scope)
    call.begin(request.app.state.context, request.receive)
    return call


OpenCall = Annotated[Call, Depends(open_call)]
