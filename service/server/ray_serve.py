"""The service as a deployment of Ray Serve, which places its replicas, routes requests to them and replaces them.

    serve run service.server.ray_serve:app

Source: https://docs.ray.io/en/latest/serve/http-guide.html (ASGI apps behind `serve.ingress`)
"""

import asyncio

from ray import serve  # pyright: ignore[reportMissingImports]  the extra `ray`
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import EngineStopped
from service.server.app import STOP_DEVICE_S, asgi_app
from service.server.service import Service
from service.settings import Settings
from service.settings.sources import export_hub_token, load_settings


@serve.deployment(max_ongoing_requests=Settings.model_fields["max_concurrent_requests"].default)
@serve.ingress()
class Levserve:
    """One replica: a whole service, whose settings are the variables of its environment."""

    async def __init__(self) -> None:
        """Load the model; the replica gets requests once they can be answered.

        Raises:
            SettingsError: a setting is wrong.
            StartError: the model cannot be served.
        """
        settings = load_settings({})
        export_hub_token(settings)
        self._service = Service(settings)
        self._service.start(on_error=lambda: None)  # Ray asks `check_health`
        await self._service.decided.wait()
        self.check_health()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the app that Ray Serve mounts."""
        answers = asgi_app(self._service)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await receive()  # startup, which `__init__` was
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await asyncio.to_thread(self._service.stop, STOP_DEVICE_S)
                await send({"type": "lifespan.shutdown.complete"})
            else:
                await answers(scope, receive, send)

        return app

    def check_health(self) -> None:
        """Raise what the service has failed with, so that Ray replaces the replica."""
        if (error := self._service.error) is not None:
            raise error if isinstance(error, Exception) else EngineStopped(str(error))


app = Levserve.bind()  # pyright: ignore[reportAttributeAccessIssue]  a deployment by now
