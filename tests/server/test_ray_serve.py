"""The service behind Ray Serve, in the environment that has Ray."""

import pytest

from tests.ray_program import run_ray_program


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_answers_once_it_can_streams_and_refuses_as_the_service_does():
    found = run_ray_program("tests.server.ray_serve_program")
    assert [model["id"] for model in found["models"]["data"]] == ["levserve-demo"]
    assert found["whole"]
    assert found["streamed"] == [found["whole"], "[DONE]"]
    assert found["refused"] == [404, "model_not_found"]
    status, message = found["message"]
    assert status == "DEPLOY_FAILED"
    assert "/no/such/folder: no such folder" in message
    assert found["prefixed"] == {"page": 200, "whole": found["whole"], "events": found["streamed"]}
