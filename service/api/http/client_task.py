"""Facts about a request from before its handler runs, as entries of the scope, which no client can set."""

import asyncio

from starlette.types import Scope

# The task to cancel when the client disconnects, whatever it awaits.
TASK = "levserve.task"
# When the request arrived, on the event loop's clock, if it had to wait for the model.
ARRIVED_S = "levserve.arrived_s"


def end_with_client(scope: Scope) -> None:
    """Have the server cancel the current task if the client disconnects before it has the whole answer."""
    scope[TASK] = asyncio.current_task()
