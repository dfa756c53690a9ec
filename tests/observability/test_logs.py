import io
import json
import logging

import pytest

from service.observability.logs import Origin, configure_logging
from service.observability.progress import CLEAR_LINE
from service.observability.trace_context import TraceContext, current_trace


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("stream", "before"), [(Terminal(), CLEAR_LINE), (io.StringIO(), "")])
def test_a_record_clears_the_moving_line_of_a_terminal(root_logger, stream, before):
    configure_logging("INFO", "text", stream)
    logging.getLogger("x").info("ready", extra={"seconds": 1.23456})
    assert stream.getvalue()[: len(before)] == before
    assert stream.getvalue().endswith("INFO    ready  seconds=1.23\n")
    assert stream.getvalue().count(CLEAR_LINE) == (1 if before else 0)


def written(write, origin: Origin | None = None) -> dict:
    """Return the line of one record as Cloud Logging reads it."""
    stream = io.StringIO()
    configure_logging("INFO", "json", stream, origin=origin or Origin())
    write(logging.getLogger("x"))
    return json.loads(stream.getvalue())


def test_a_line_says_where_it_was_written(root_logger):
    line = written(lambda logger: logger.info("ready", extra={"seconds": 1}))
    place = line["logging.googleapis.com/sourceLocation"]
    assert place["file"].endswith("test_logs.py")
    assert place["line"].isdecimal()
    assert place["function"] == "<lambda>"
    assert (line["severity"], line["message"], line["seconds"]) == ("INFO", "ready", 1)
    assert not {"serviceContext", "stack_trace", "@type", "logging.googleapis.com/trace"} & line.keys()


@pytest.mark.parametrize(("project", "prefix"), [("p", "projects/p/traces/"), (None, "")])
def test_a_line_names_trace_span_and_sampling_of_its_request(root_logger, project, prefix):
    token = current_trace.set(TraceContext("a" * 32, "b" * 16, True))
    line = written(lambda logger: logger.info("x"), Origin(project))
    current_trace.set(TraceContext("a" * 32, None, False))
    unsampled = written(lambda logger: logger.info("x"), Origin(project))
    current_trace.reset(token)
    assert line["logging.googleapis.com/trace"] == prefix + "a" * 32
    assert (line["logging.googleapis.com/spanId"], line["logging.googleapis.com/trace_sampled"]) == ("b" * 16, True)
    assert unsampled["logging.googleapis.com/trace_sampled"] is False
    assert "logging.googleapis.com/spanId" not in unsampled


def test_an_error_with_a_traceback_is_one_of_error_reporting(root_logger):
    def fail(logger):
        try:
            raise ValueError("cause")
        except ValueError:
            logger.exception("failed")

    line = written(fail, Origin(service="chat", revision="chat-00001"))
    assert line["stack_trace"].startswith("Traceback (most recent call last)")
    assert line["stack_trace"].endswith("ValueError: cause")
    assert line["serviceContext"] == {"service": "chat", "version": "chat-00001"}
    assert not {"exc_info", "@type"} & line.keys()


def test_an_error_without_a_traceback_names_its_place(root_logger):
    line = written(lambda logger: logger.error("failed"))
    assert line["@type"].endswith("ReportedErrorEvent")
    place = line["context"]["reportLocation"]
    assert place["filePath"].endswith("test_logs.py")
    assert place["lineNumber"] > 0
    assert line["serviceContext"] == {"service": "levserve"}


def test_a_request_is_described_for_cloud_logging_and_not_on_a_terminal(root_logger):
    request = {
        "requestMethod": "POST",
        "requestUrl": "/v1/chat/completions\n\x1b[2J",
        "status": 200,
        "responseSize": "12",
    }
    facts = {"status": 200, "latency_s": 0.4321, "http_request": request}
    facts |= {"prompt_tokens": 10, "completion_tokens": 5, "model": "tiny", "request_id": "a", "stream": True}
    assert written(lambda logger: logger.info("request", extra=facts))["httpRequest"] == facts["http_request"]
    stream = io.StringIO()
    configure_logging("INFO", "text", stream)
    logging.getLogger("x").info("request", extra=facts)
    assert stream.getvalue()[9:] == "POST /v1/chat/completions??[2J 200 0.43 s 10+5 tokens tiny\n"
