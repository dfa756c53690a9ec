"""An input file is checked whole before a line of it runs, and every bad line is named."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.batch.lines import BadLine, numbered_lines, parse_line
from service.api.batch.validation import MAX_ERRORS, MAX_LINES, validate
from tests.api.batch.running import ENDPOINT, jsonl, request_line, running
from tests.api.scripted_engine import MODEL


def check(lines, max_line_bytes=10_000):
    return validate(io.BytesIO(jsonl(lines)), endpoint=ENDPOINT, models=(MODEL, "alias"), max_line_bytes=max_line_bytes)


def changed(**fields):
    return json.dumps(json.loads(request_line("x")) | fields)


BAD = {
    "no JSON": ("{", "invalid_json_line", None),
    "a list": ("[]", "invalid_json_line", None),
    "NaN": ('{"custom_id": NaN}', "invalid_json_line", None),
    "depth": ("[" * 5000, "invalid_json_line", None),
    "bytes that are no text": ("\udcff", "invalid_json_line", None),
    "no custom_id": (changed(custom_id=None), "missing_required_parameter", "custom_id"),
    "an empty custom_id": (changed(custom_id=""), "missing_required_parameter", "custom_id"),
    "a number as custom_id": (changed(custom_id=1), "invalid_value", "custom_id"),
    "GET": (changed(method="GET"), "invalid_method", "method"),
    "a route that a batch cannot have": (changed(url="/v1/moderations"), "invalid_url", "url"),
    "another route than the batch's": (request_line("x", "/v1/completions"), "url_mismatch", "url"),
    "no body": (changed(body=None), "missing_required_parameter", "body"),
    "a text as body": (changed(body="x"), "invalid_value", "body"),
    "a stream": (request_line("x", stream=True), "invalid_value", "body.stream"),
    "no model": (request_line("x", model=None), "missing_required_parameter", "body.model"),
    "another model": (request_line("x", model="other"), "model_not_found", "body.model"),
    "a field too many": (changed(priority=1), "unknown_parameter", "priority"),
    "a double": (request_line("a"), "duplicate_custom_id", "custom_id"),
    "a long line": (request_line("x" * 20_000), "request_too_large", None),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_named_with_its_number(bad):
    text, code, param = BAD[bad]
    content = b"\n".join(
        [request_line("a").encode(), b"", text.encode(errors="surrogateescape"), request_line("b").encode()]
    )
    found = validate(io.BytesIO(content), endpoint=ENDPOINT, models=(MODEL,), max_line_bytes=10_000)
    [error] = found.errors
    assert (error["code"], error["param"], error["line"]) == (code, param, 3)
    assert error["message"].endswith(".")


def test_all_bad_lines_are_named_up_to_a_limit_which_is_stated():
    found = check(["{"] * (MAX_ERRORS + 5))
    assert [error["line"] for error in found.errors[:3]] == [1, 2, 3]
    assert len(found.errors) == MAX_ERRORS + 1
    assert found.errors[-1]["message"] == "5 more lines are at fault."


def test_a_good_file_is_counted_and_its_model_known():
    found = check([request_line("a", model="alias"), "", request_line("b")])
    assert (found.num_lines, found.model, found.errors) == (2, "alias", [])


def test_an_empty_file_and_one_of_too_many_lines_are_refused():
    assert [error["code"] for error in check([""]).errors] == ["empty_file"]
    assert [error["code"] for error in check(["{}"] * (MAX_LINES + 1)).errors] == ["too_many_tasks"]


@given(st.binary(max_size=200))
def test_any_bytes_are_lines_or_bad_lines(content):
    found = validate(io.BytesIO(content), endpoint=ENDPOINT, models=(MODEL,), max_line_bytes=20)
    assert found.errors
    assert all(error["code"] and error["message"] for error in found.errors)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_a_request_or_a_bad_line(value):
    lines = [changed(**{name: value}) for name in ("body", "custom_id", "url", "method")]
    # A text may be a custom_id.
    for line in (json.dumps(value), *(lines if not isinstance(value, str) else lines[:1])):
        found = check([line])
        assert found.num_lines == 1
        assert found.errors


def test_after_a_line_that_is_too_long_the_next_is_read():
    found = list(numbered_lines(io.BytesIO(b"a" * 50 + b"\nbc\n" + b"d" * 50), 10))
    assert [number for number, _ in found] == [1, 2, 3]
    assert found[1][1] == b"bc\n"
    with pytest.raises(BadLine, match="more than 10 bytes"):
        parse_line(found[0][1])


@pytest.mark.anyio
async def test_a_file_with_bad_lines_fails_its_batch_before_anything_runs(tmp_path):
    async with running(tmp_path) as service:
        batch = await service.begin([request_line("a"), "{", request_line("a")])
        failed = await service.until(batch["id"], "failed")
    assert failed["errors"]["object"] == "list"
    assert [(error["line"], error["code"]) for error in failed["errors"]["data"]] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
    ]
    assert failed["failed_at"] >= failed["created_at"]
    assert (failed["output_file_id"], failed["request_counts"]["total"]) == (None, 0)
    assert service.engine.streams == []
