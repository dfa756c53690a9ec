"""Batch files against the real API over a scripted engine."""

import asyncio
import base64
import io
import json

import pytest

from service.errors import EngineStopped
from service.offline.batch import run_batch
from service.offline.batch_file import BatchFileError, Journal, read_lines
from tests.api.hearing.scripted_speech import MODEL, SECOND, SpeechService


def write(path, lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def line(custom_id: str, **body):
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "m", "prompt": custom_id, "max_tokens": 3} | body,
    }


class EchoApi:
    """An ASGI app that answers with its prompt and counts what it was asked."""

    def __init__(self, fails_at: str | None = None):
        self.asked, self.fails_at, self.most_at_once, self._under_way = [], fails_at, 0, 0

    async def __call__(self, scope, receive, send):
        body = json.loads((await receive())["body"])
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        await asyncio.sleep(0.001)
        self._under_way -= 1
        self.asked.append(body["prompt"])
        status, answer = 200, {"choices": [{"text": body["prompt"]}], "usage": {"completion_tokens": 3}}
        if body["max_tokens"] < 0:
            status, answer = 400, {"error": {"message": "no"}}
        if body["prompt"] == self.fails_at:
            status, answer = 503, {"error": {"message": "gone"}}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def run(api, source, target, concurrency=4):
    return asyncio.run(run_batch(api, source, target, concurrency=concurrency, out=io.StringIO()))


def answers(path) -> dict:
    return {answer["custom_id"]: answer["response"] for answer in map(json.loads, path.read_text().splitlines())}


def test_every_line_is_answered_and_the_device_kept_full(tmp_path):
    write(tmp_path / "in.jsonl", [line(f"n{i}") for i in range(50)])
    api = EchoApi()
    tally = run(api, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    result = answers(tmp_path / "out.jsonl")
    assert {name: response["body"]["choices"][0]["text"] for name, response in result.items()} == {
        f"n{i}": f"n{i}" for i in range(50)
    }
    assert (tally.num_done, tally.num_tokens, api.most_at_once) == (50, 150, 4)
    assert not (tmp_path / "out.jsonl.part").exists()


def test_a_refusal_is_an_answer(tmp_path):
    write(tmp_path / "in.jsonl", [line("good"), line("bad", max_tokens=-1)])
    tally = run(EchoApi(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert tally.num_refused == 1
    assert answers(tmp_path / "out.jsonl")["bad"]["status_code"] == 400


def of_recording(custom_id: str, file_url: str, **body):
    body = {"model": MODEL, "file_url": file_url} | body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/audio/transcriptions", "body": body}


def test_recordings_are_heard_from_files_and_from_lines(tmp_path):
    (tmp_path / "monday.wav").write_bytes(SECOND)
    inline = f"data:audio/wav;base64,{base64.b64encode(SECOND).decode()}"
    verbose = {"response_format": "verbose_json", "timestamp_granularities": ["segment"], "vad_filter": False}
    lines = [
        of_recording("file", "file:monday.wav", **verbose),
        of_recording("inline", inline, response_format="srt", language=None),
        of_recording("broken", f"data:audio/wav;base64,{base64.b64encode(b'text').decode()}"),
        of_recording("garbled", "data:audio/wav;base64,*"),
    ]
    write(tmp_path / "in.jsonl", lines)
    tally = run(SpeechService(max_audio_bytes=2**20).app, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    result = answers(tmp_path / "out.jsonl")
    assert (result["file"]["body"]["text"], len(result["file"]["body"]["segments"])) == ("Hello world", 1)
    assert result["inline"]["body"]["text"].startswith("1\n00:00:00,000 --> ")
    assert result["broken"]["body"]["error"]["param"] == "file"
    assert result["garbled"]["body"]["error"]["param"] == "body.file_url"
    assert (tally.num_done, tally.num_refused) == (4, 2)


def test_a_run_that_failed_goes_on_where_it_stopped_and_does_no_line_twice(tmp_path):
    write(tmp_path / "in.jsonl", [line(f"n{i}") for i in range(20)])
    with pytest.raises(EngineStopped, match="the engine failed at 'n10': gone"):
        run(EchoApi(fails_at="n10"), tmp_path / "in.jsonl", tmp_path / "out.jsonl", concurrency=1)
    part = tmp_path / "out.jsonl.part"
    assert not (tmp_path / "out.jsonl").exists()
    # A kill in the middle of a line.
    part.write_bytes(part.read_bytes()[:-7])
    api = EchoApi()
    run(api, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert sorted(api.asked) == sorted(f"n{i}" for i in range(9, 20))
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


def test_answers_of_another_file_are_not_mixed_in(tmp_path):
    write(tmp_path / "in.jsonl", [line("a")])
    (tmp_path / "out.jsonl.part").write_text('{"custom_id": "stranger"}\n')
    with pytest.raises(BatchFileError, match="has answers to other lines, such as 'stranger'"):
        run(EchoApi(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def test_a_complete_output_is_never_overwritten(tmp_path):
    write(tmp_path / "in.jsonl", [line("a")])
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(BatchFileError, match="exists already"):
        run(EchoApi(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "line 2: This line is not parseable as valid JSON"),
        (json.dumps(line("")), "line 2: Missing required parameter: 'custom_id'"),
        (json.dumps(line("a")), "line 2: custom_id 'a' is on an earlier line too"),
        (json.dumps(line("b") | {"url": "/v1/moderations"}), "line 2: Invalid 'url': it must be one of"),
        (json.dumps(line("b") | {"body": 3}), "line 2: Invalid 'body': it must be an object"),
        (json.dumps(line("b", stream=True)), "line 2: Invalid 'body.stream': a batch cannot have a stream"),
        (json.dumps(of_recording("b", "file:no.wav")), "line 2: Invalid 'body.file_url': there is no file"),
        (json.dumps(of_recording("b", "https://example.com/a.wav")), "line 2: Invalid 'body.file_url': it must be a f"),
        (json.dumps(of_recording("b", 3)), "line 2: Missing required parameter: 'body.file_url'"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(tmp_path, bad, reason):
    (tmp_path / "in.jsonl").write_text(json.dumps(line("a")) + "\n" + bad + "\n")
    api = EchoApi()
    with pytest.raises(BatchFileError, match=reason):
        run(api, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert api.asked == []
    assert list(tmp_path.iterdir()) == [tmp_path / "in.jsonl"]


def test_blank_lines_are_passed_over(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n" + json.dumps(line("a")) + "\n\n")
    assert [parsed.custom_id for parsed in read_lines(tmp_path / "in.jsonl")] == ["a"]


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(BatchFileError, match="cannot be read: No such file"):
        run(EchoApi(), tmp_path / "none.jsonl", tmp_path / "out.jsonl")


def test_two_processes_do_not_write_one_output(tmp_path):
    write(tmp_path / "in.jsonl", [line("a")])
    with Journal(tmp_path / "out.jsonl"), pytest.raises(BatchFileError, match="is being written by another process"):
        run(EchoApi(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    run(EchoApi(), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
