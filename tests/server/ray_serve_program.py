"""The service as a deployment of Ray Serve, and what a client gets of it."""

import contextlib
import json
import socket
import time
from pathlib import Path

import httpx
import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

from service.server import ray_serve
from service.server.ray_serve import Levserve

BODY = {"model": "levserve-demo", "prompt": "Count from 1", "max_tokens": 5, "temperature": 0}
MAX_S = 120


def until(condition):
    give_up_at = time.monotonic() + MAX_S
    while not (found := condition()):
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    return found


def events(client):
    """Return the text of a streamed answer, and its last line."""
    with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]), lines[-1]


def is_idle(client):
    series = client.get("/metrics").text.splitlines()
    return any(line.startswith("levserve_num_requests_running{") and line.endswith(" 0.0") for line in series)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def asked(client):
    """Return what a client gets."""
    found = {"ready": client.get("/health/ready").status_code, "models": client.get("/v1/models").json()}
    whole = client.post("/v1/completions", json=BODY).json()
    found["whole"], found["streamed"] = whole["choices"][0]["text"], events(client)
    refused = client.post("/v1/completions", json=BODY | {"model": "other"})
    found["refused"] = refused.status_code, refused.json()["error"]["code"]
    long = BODY | {"stream": True, "max_tokens": 200, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=long) as answer:
        next(answer.iter_lines())
    until(lambda: is_idle(client))  # the client has left
    return found


def under_prefix(port):
    """Return what a client gets of an application whose routes are not those of the root."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/llm", timeout=MAX_S) as client:
        page = client.get("/openapi.json")
        whole = client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        return {"page": page.status_code, "whole": whole, "events": events(client)}


def message_of(name):
    """Return what the status says of an application that cannot start."""
    variables = {"env_vars": {"MODEL_URI": "/no/such/folder"}}
    options = {"num_cpus": 0.5, "runtime_env": variables}
    app = Levserve.options(ray_actor_options=options).bind()
    with contextlib.suppress(RuntimeError):  # it says no more than the name of the application that failed
        serve.run(app, name=name, route_prefix=f"/{name}")
    found = serve.status().applications[name]
    return [found.status, found.deployments[Levserve.name].message]


def main():
    [service] = yaml.safe_load_all(Path("deploy/ray/ray_service.yaml").read_text())
    [application] = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"])).applications
    assert application.import_path == f"{ray_serve.__name__}:app"
    assert [deployment.name for deployment in application.deployments] == [Levserve.name]
    port = free_port()
    ray.init(num_cpus=4, include_dashboard=False)
    serve.start(http_options={"port": port, "host": "127.0.0.1"})
    serve.run(Levserve.options(ray_actor_options={"num_cpus": 0.5}).bind())
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=MAX_S) as client:
        found = asked(client)
    found["message"] = message_of("bad")
    serve.run(Levserve.options(ray_actor_options={"num_cpus": 0.5}).bind(), name="llm", route_prefix="/llm")
    found["prefixed"] = under_prefix(port)
    serve.shutdown()
    ray.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
