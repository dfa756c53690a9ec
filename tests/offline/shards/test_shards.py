"""Several processes of one batch, here as runs in one process: each line is answered once, in a folder and a bucket."""

import asyncio
import io
import json
import resource
import threading
import time

import pytest

from service.errors import EngineStopped, ObjectChanged
from service.offline.batch_file import BatchFileError
from service.offline.shards import chunks, run
from service.offline.shards.chunks import open_input
from service.offline.shards.parts import Parts
from service.offline.shards.run import ShardRun, TooManyErrors
from service.settings.shard import Shard
from service.storage.location import parse_location
from service.storage.retry import TransferLimits
from service.storage.store import open_store
from tests.fault_proxy import Fault
from tests.offline.test_batch import EchoApi, line, of_recording

JOB = {"input": [], "checkpoint": {"uri": "m", "version": "1"}, "settings": {"DTYPE": "auto"}}
NUM_LINES = 50
WHOLE = Shard()


@pytest.fixture
def few_lines(monkeypatch):
    """Chunks of eight lines."""
    for module in (chunks, run):
        monkeypatch.setattr(module, "CHUNK_LINES", 8)


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path, few_lines):
    """A function that writes the input, and a function that opens the output as another process would."""
    return Place(tmp_path, request.getfixturevalue("gcs_bucket") if request.param == "bucket" else None)


class Place:
    def __init__(self, path, bucket=None):
        self.path, self.bucket = path, bucket
        self.host = bucket and bucket.endpoint
        self.source = bucket.uri("in") if bucket else str(path / "in")
        self.target = bucket.uri("out") if bucket else str(path / "out")

    def write(self, **files):
        for name, lines in files.items():
            text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines).encode()
            self.write_bytes(f"{name}.jsonl", text)

    def write_bytes(self, name, data):
        if self.bucket:
            self.bucket.upload(f"in/{name}", data)
        else:
            (self.path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / "in" / name).write_bytes(data)

    def open(self, source=None, is_single=False):
        return open_input(parse_location(source or self.source), emulator_host=self.host, is_single=is_single)

    def store(self):
        return open_store(
            self.target, "OUT", emulator_host=self.host, limits=TransferLimits(outage_s=1.0, max_wait_s=0.05)
        )

    def run_of(self, api, shard=WHOLE, *, concurrency=3, parts=Parts, **options):
        batch = self.open()
        parts = parts(self.store(), len(batch.chunks))
        parts.begin(JOB)
        return ShardRun(api, batch, parts, shard=shard, concurrency=concurrency, out=io.StringIO(), **options)

    def rows(self):
        """The answers of all parts, in order."""
        store = self.store()
        names = [name for name in store.list("") if name.startswith("part-")]
        return [json.loads(row) for name in names for row in store.read(name).splitlines()]


def texts(rows):
    return [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in rows]


def test_shards_answer_each_line_once_in_the_order_of_the_input(place):
    ids = [f"n{i:02d}" for i in range(NUM_LINES)]
    place.write(a=[line(name) for name in ids[:20]], b=[line(name) for name in ids[20:]])
    apis = [EchoApi() for _ in range(3)]

    async def all_of_them():
        return await asyncio.gather(*(place.run_of(api, Shard(i, 3)).run() for i, api in enumerate(apis)))

    asyncio.run(all_of_them())
    assert sorted(name for api in apis for name in api.asked) == ids
    assert texts(place.rows()) == [(name, name) for name in ids]
    again = EchoApi()
    asyncio.run(place.run_of(again, Shard(0, 5)).run())
    assert again.asked == []
    left = set(place.store().list(""))
    assert left == {"job.json", *(f"part-{i:05d}-of-00007.jsonl" for i in range(7))}


def test_a_shard_alone_answers_the_chunks_of_all(place):
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])
    api = EchoApi()
    tally = asyncio.run(place.run_of(api, Shard(2, 4)).run())
    assert len(place.rows()) == tally.num_done == NUM_LINES
    assert api.asked[:8] == [f"n{i:02d}" for i in range(16, 24)]


def test_a_failed_run_keeps_its_answers_and_the_next_goes_on(place):
    ids = [f"n{i:02d}" for i in range(NUM_LINES)]
    place.write(a=[line(name) for name in ids])
    first = EchoApi(fails_at="n13")
    with pytest.raises(EngineStopped):
        asyncio.run(place.run_of(first, concurrency=1).run())
    second = EchoApi()
    tally = asyncio.run(place.run_of(second).run())
    assert set(first.asked) & set(second.asked) <= {"n13", *ids[16:]}
    assert len(first.asked) + len(second.asked) <= NUM_LINES + 2  # what failed, and what was in flight then
    assert tally.num_earlier >= 13
    assert texts(place.rows()) == [(name, name) for name in ids]
    assert [name for name in place.store().list("") if name.startswith("kept")] == []


def test_a_run_that_is_cancelled_keeps_what_it_has_and_cuts_what_runs(place):
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])
    api = EchoApi()

    async def cancelled():
        running = asyncio.create_task(place.run_of(api, concurrency=2).run())
        while len(api.asked) < 12:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cancelled())
    again = EchoApi()
    asyncio.run(place.run_of(again).run())
    assert len(api.asked) + len(again.asked) <= NUM_LINES + 2
    assert len(place.rows()) == NUM_LINES


def test_a_claim_that_arrives_after_a_cancellation_is_released(place):
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])

    class SlowToClaim(Parts):
        has_claimed = threading.Event()

        def claim(self, chunk, owner):
            claim = super().claim(chunk, owner)
            self.has_claimed.set()
            time.sleep(0.1)
            return claim

    async def cancelled():
        first = place.run_of(EchoApi(), parts=SlowToClaim)
        running = asyncio.create_task(first.run())
        while not SlowToClaim.has_claimed.is_set():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cancelled())
    asyncio.run(place.run_of(EchoApi()).run())
    assert len(place.rows()) == NUM_LINES


def test_nothing_is_kept_of_a_chunk_that_has_a_part(place):
    """Answers are kept slowly while their chunk ends, and a part is written while its run is cancelled."""
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])

    class Slow(Parts):
        is_writing = threading.Event()

        def keep(self, chunk, rows):
            time.sleep(0.05)
            super().keep(chunk, rows)

        def write(self, chunk, rows):
            self.is_writing.set()
            time.sleep(0.05)
            super().write(chunk, rows)

    async def cancelled():
        running = asyncio.create_task(place.run_of(EchoApi(), parts=Slow).run())
        while not Slow.is_writing.is_set():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def both():
        names = place.store().list("")
        parts = {name[len("part-") :][:5] for name in names if name.startswith("part-")}
        return parts & {name.split("/")[1] for name in names if name.startswith("kept/")}

    asyncio.run(cancelled())
    assert both() == set()
    asyncio.run(place.run_of(EchoApi(), parts=Slow).run())
    assert both() == set()
    assert len(place.rows()) == NUM_LINES


def test_a_kill_would_lose_no_more_than_a_chunk(place):
    """A line of the first chunk takes its time while those of the next are answered."""
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])

    class Slow(EchoApi):
        async def __call__(self, scope, receive, send):
            message = await receive()
            if b'"n03"' in message["body"]:
                await asyncio.sleep(3600)

            async def again():
                return message

            await super().__call__(scope, again, send)

    api = Slow()

    async def stalled():
        running = asyncio.create_task(place.run_of(api).run())
        while len(api.asked) < NUM_LINES - 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        store = place.store()
        stored = sum(store.read(name).count(b"\n") for name in store.list("") if name.startswith(("part", "kept")))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return stored

    assert asyncio.run(stalled()) >= len(api.asked) - 8


@pytest.mark.slow
def test_lost_acknowledgements_and_failing_reads_change_nothing(gcs_bucket, tmp_path, few_lines):
    place = Place(tmp_path, gcs_bucket)
    ids = [f"n{i:02d}" for i in range(NUM_LINES)]
    place.write(a=[line(name) for name in ids])
    gcs_bucket.faults([
        Fault("POST .*upload", times=4, skip=1, cut_after_bytes=5),
        Fault("POST .*upload", times=4, skip=9, status=503),
        Fault("alt=media", times=3, skip=2, cut_after_bytes=100),
        Fault("prefix=", times=3, skip=3, status=503),
    ])  # fmt: skip
    apis = [EchoApi() for _ in range(2)]

    async def both():
        await asyncio.gather(*(place.run_of(api, Shard(i, 2)).run() for i, api in enumerate(apis)))

    asyncio.run(both())
    assert len(gcs_bucket.hits()) >= 10
    gcs_bucket.faults([])
    assert sorted(name for api in apis for name in api.asked) == ids
    assert texts(place.rows()) == [(name, name) for name in ids]


def test_lines_that_are_no_requests_are_rows_of_errors(place, monkeypatch):
    monkeypatch.setattr(chunks, "MAX_LINE_BYTES", 1000)
    long = json.dumps(line("long") | {"custom_id": "x" * 2000}) + "\n"
    refused = [line("bad", max_tokens=-1), line("url") | {"url": "/v1/moderations"}]
    place.write(a=["{no\n", line("a"), "\n", long, *refused, json.dumps(line("end"))])
    tally = asyncio.run(place.run_of(EchoApi()).run())
    rows = place.rows()
    assert [row["custom_id"] for row in rows] == [None, "a", None, "bad", "url", "end"]
    assert [row["error"] and (row["error"]["code"], row["error"]["line"]) for row in rows] == [
        ("invalid_json_line", 1), None, ("request_too_large", 4), None, ("invalid_url", 6), None,
    ]  # fmt: skip
    assert rows[3]["response"]["status_code"] == 400
    assert (tally.num_done, tally.num_refused) == (6, 4)


def test_a_run_ends_once_more_lines_fail_than_may(place):
    place.write(a=[line(f"n{i:02d}", max_tokens=-1 if i > 9 else 3) for i in range(NUM_LINES)])
    api = EchoApi()
    with pytest.raises(TooManyErrors) as error:
        asyncio.run(place.run_of(api, concurrency=1, max_error_rate=0.2).run())
    # Another line of the other open chunk may fail while the answers of the first are stored.
    assert error.value.num_failed in (11, 12)
    assert f"{error.value.num_failed} of 50 lines" in str(error.value)
    assert len(api.asked) < 25
    asyncio.run(place.run_of(EchoApi(), max_error_rate=0.8).run())
    assert len(place.rows()) == NUM_LINES


def test_an_input_that_is_replaced_meanwhile_ends_the_run(place):
    place.write(a=[line(f"n{i:02d}") for i in range(NUM_LINES)])
    shard = place.run_of(EchoApi())
    place.write(a=[line(f"m{i:02d}") for i in range(NUM_LINES)])
    with pytest.raises(ObjectChanged, match="overwritten"):
        asyncio.run(shard.run())
    assert place.rows() == []


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a": [line("x"), line("y"), line("x")]}, "a.jsonl, line 3: custom_id 'x' is at a.jsonl, line 1 too"),
        ({"a": []}, "has no lines"),
        ({"a": ["\n\n"]}, "has no lines"),
    ],
)
def test_an_input_that_cannot_be_answered_is_refused_before_anything_is_written(place, files, reason):
    place.write(**files)
    with pytest.raises(BatchFileError, match=reason):
        place.open()
    assert place.store().list("") == {}


def test_an_input_that_is_not_there_is_one_clear_error(place):
    place.write_bytes("note.txt", b"1")
    with pytest.raises(BatchFileError, match=r"none of its 1 files ends with \.jsonl"):
        place.open()
    with pytest.raises(BatchFileError, match=r"there is no batch file\. Name one"):
        place.open(f"{place.source}/none")


def test_one_custom_id_in_two_files_is_refused_only_where_they_become_one(place):
    place.write(a=[line("x")], b=[line("y"), line("x")])
    assert len(place.open().chunks) == 2
    with pytest.raises(BatchFileError, match=r"b.jsonl, line 2: custom_id 'x' is at a.jsonl, line 1 too"):
        place.open(is_single=True)


def test_answers_to_something_else_are_not_mixed_in(place):
    parts = Parts(place.store(), 1)
    parts.begin(JOB)
    parts.begin(JOB)
    for job, reason in (
        ({**JOB, "input": [{"name": "b.jsonl"}]}, "its input did not have b.jsonl"),
        ({**JOB, "checkpoint": {"uri": "n", "version": "1"}}, "its model was m"),
        ({**JOB, "checkpoint": {"uri": "m", "version": "2"}}, "its model was another version of m"),
        ({**JOB, "settings": {"DTYPE": "int8"}}, "DTYPE was 'auto' and is 'int8'"),
    ):
        with pytest.raises(BatchFileError, match=f"has answers to another batch: {reason}"):
            parts.begin(job)
    place.store().delete("job.json")
    place.store().write("part-00000-of-00001.jsonl", b"")
    with pytest.raises(BatchFileError, match=r"has part-00000-of-00001\.jsonl but no job\.json"):
        parts.begin(JOB)


def test_recordings_lie_beside_the_file_that_names_them(place):
    from tests.api.hearing.scripted_speech import SECOND, SpeechService

    place.write_bytes("sub/monday.wav", SECOND)
    lines = [of_recording(name, f"file:{name}.wav") for name in ("monday", "none", "../../../etc/passwd")]
    place.write(**{"sub/a": lines})
    asyncio.run(place.run_of(SpeechService(max_audio_bytes=2**20).app).run())
    first, *others = place.rows()
    assert first["response"]["body"]["text"] == "Hello world"
    assert [row["response"]["body"]["error"]["param"] for row in others] == ["body.file_url"] * 2


def test_a_chunk_asks_for_few_tokens_or_is_one_line(place, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TOKENS", 1000)
    asked = [300, 300, 300, 200, 2000, 1, 1, None, 600]
    lines = [line(str(i), max_tokens=num) for i, num in enumerate(asked)]
    lines[3]["body"] |= {"n": 2}
    place.write(a=lines)
    cut = place.open().chunks
    assert [chunk.num_lines for chunk in cut] == [3, 1, 1, 4]
    assert [chunk.first_line for chunk in cut] == [1, 4, 5, 6]
    assert (cut[0].start, cut[-1].end) == (0, cut[-1].file.size_bytes)


def test_a_disk_that_takes_no_more_is_named_and_has_no_half_part(tmp_path, few_lines):
    place = Place(tmp_path)
    place.write(a=[line("a")])
    shard = place.run_of(EchoApi())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(BatchFileError, match="cannot be written: File too large"):
            asyncio.run(shard.run())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert place.rows() == []
    asyncio.run(place.run_of(EchoApi()).run())
    assert len(place.rows()) == 1
