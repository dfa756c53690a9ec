"""METRICS_PORT: the series without a key, and nothing else."""

import logging
import socket

import httpx
import pytest

from service.errors import PortInUse, SettingsError
from service.observability.metrics import Metrics
from service.observability.metrics_port import metrics_port
from service.settings import Settings


def test_the_series_are_there_while_it_is_open(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    metrics = Metrics(has_vllm_names=True)
    metrics.of_model("a").load.num_running = 3
    with metrics_port(metrics, "127.0.0.1", 0):
        port = vars(caplog.records[-1])["port"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={}).status_code == 501
        assert httpx.head(f"http://127.0.0.1:{port}/metrics").headers["content-type"].startswith("text/plain")
    assert 'levserve_num_requests_running{model_name="a"} 3.0' in text
    assert 'vllm:num_requests_running{model_name="a"} 3.0' in text
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")


def test_a_picker_scrapes_the_load_over_one_connection():
    metrics = Metrics()
    with metrics_port(metrics, "127.0.0.1", 0) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        texts = []
        for num_running in range(3):
            metrics.of_model("a").load.num_running = num_running
            answer = client.get("/metrics/load", headers={"accept": "application/openmetrics-text;version=1.0.0"})
            texts.append(answer.text)
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            connection = answer.extensions["network_stream"].get_extra_info("client_addr")
            assert connection == client.get("/metrics").extensions["network_stream"].get_extra_info("client_addr")
    for num_running, text in enumerate(texts):
        assert f'vllm:num_requests_running{{model_name="a"}} {num_running}\n' in text


def test_a_port_that_is_taken_stops_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse), metrics_port(Metrics(), "127.0.0.1", port):
            pass


def test_without_a_port_nothing_listens(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    with metrics_port(Metrics(), "127.0.0.1", None):
        assert not caplog.records


def test_it_is_another_port_than_the_services():
    with pytest.raises(SettingsError, match="METRICS_PORT: is the same as PORT"):
        Settings(port=9000, metrics_port=9000)
