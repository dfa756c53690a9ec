"""`levserve batch` in shards as processes: of platforms, killed and started again, and what they leave."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from service.errors import SettingsError
from service.offline.shards.chunks import CHUNK_LINES
from service.offline.shards.command import run_batch
from service.settings import Settings
from service.settings.shard import Shard, read_shard
from service.storage.store import open_store
from tests.fault_proxy import Fault
from tests.offline.test_batch import line

NUM_LINES = 2000
NUM_SHARDS = 4
NUM_ROUNDS = 10


@pytest.mark.parametrize(
    ("flags", "environment", "found"),
    [
        ((None, None), {}, Shard()),
        (("2/4", None), {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "2"}, Shard(2, 4)),
        ((None, None), {"CLOUD_RUN_TASK_INDEX": "1", "CLOUD_RUN_TASK_COUNT": "2"}, Shard(1, 2)),
        ((None, "3"), {"JOB_COMPLETION_INDEX": "1"}, Shard(1, 3)),
        ((None, "1"), {}, Shard()),
        (("4/4", None), {}, "--shard: says shard 4 of 4; the index is from 0 to 3"),
        (("a", None), {}, "--shard: is 'a'. Write the index from 0 and the count"),
        (("0/0", None), {}, "the count at least 1"),
        ((None, None), {"CLOUD_RUN_TASK_INDEX": "1"}, "CLOUD_RUN_TASK_INDEX: says shard '1' of ''"),
        ((None, None), {"JOB_COMPLETION_INDEX": "0"}, "Kubernetes tells no count. Add --shards"),
        ((None, "4"), {}, "--shards: is 4, and nothing says which of them this is"),
    ],
)
def test_a_process_knows_which_shard_it_is_or_says_what_is_missing(flags, environment, found):
    if isinstance(found, Shard):
        assert read_shard(*flags, environment) == found
        return
    with pytest.raises(SettingsError) as error:
        read_shard(*flags, environment)
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("source", "target", "options", "reason"),
    [
        ("in", "in/out", {}, "OUT: .*/in/out lies inside the input"),
        ("in", "in", {}, "lies inside the input"),
        ("gs://bucket/a", "gs://bucket/a/b", {}, "OUT: gs://bucket/a/b lies inside the input"),
        ("in/a.jsonl", "out.jsonl", {"shard": Shard(0, 2)}, r"shards and their flags need a folder: .*/out\.jsonl/"),
        ("in/a.jsonl", "out.jsonl", {"is_single": True}, "need a folder"),
        ("in", "in/a.jsonl", {}, "is a file, and answers in shards are several"),
        ("hf://org/name", "out/", {}, "IN: .* is on the Hub"),
        ("in", "hf://org/name", {}, "OUT: .* cannot be written to"),
    ],
)
def test_places_that_cannot_be_are_refused_before_anything_is_read(tmp_path, source, target, options, reason):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps(line("a")) + "\n")
    addresses = [each if "://" in each else f"{tmp_path}/{each}" for each in (source, target)]
    given = {"shard": Shard(), "is_single": False, "max_error_rate": None} | options
    with pytest.raises(SettingsError, match=reason):
        run_batch(Settings(), *addresses, given.pop("shard"), **given)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def requests(number):
    """The lines of one file: greedy, so that any process answers alike."""
    for i in range(number):
        body = {"model": "levserve-demo", "temperature": 0, "max_tokens": 1 + i % 3}
        if i % 5 == 4:
            chat = body | {"messages": [{"role": "user", "content": f"What is {i} + 1?"}]}
            yield {"custom_id": f"{i}", "method": "POST", "url": "/v1/chat/completions", "body": chat}
        else:
            completion = body | {"prompt": f"Count from {i}", "ignore_eos": True}
            yield {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": completion}


class Batch:
    """A batch of the demo model, and its processes."""

    def __init__(self, path, num_lines, bucket=None):
        self.path, self.bucket = path, bucket
        self.source = bucket.uri("in") if bucket else path / "in"
        (path / "in").mkdir()
        lines = [json.dumps(each) + "\n" for each in requests(num_lines)]
        for i in range(2):
            half = "".join(lines[i * num_lines // 2 : (i + 1) * num_lines // 2])
            (path / "in" / f"{i}.jsonl").write_text(half)
            if bucket:
                bucket.upload(f"in/{i}.jsonl", half.encode())
        self.counts = []  # a file for each process, with a byte for each request that it has answered

    def start(self, target, **environment):
        count = self.path / f"count-{len(self.counts)}"
        self.counts.append(count)
        module = "tests.offline.shards.counting_process"
        command = [sys.executable, "-m", module, "batch", str(self.source), str(target), "--log-format", "json"]
        if self.bucket:
            environment["STORAGE_EMULATOR_HOST"] = self.bucket.endpoint
        with count.with_suffix(".log").open("wb") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=os.environ | environment | {"ANSWERED": str(count)}
            )

    def shard(self, target, index, count=NUM_SHARDS):
        return self.start(target, CLOUD_RUN_TASK_INDEX=str(index), CLOUD_RUN_TASK_COUNT=str(count))

    def num_answered(self, begin=0, end=None):
        """How many requests these processes have answered, also those that were killed."""
        return sum(count.stat().st_size for count in self.counts[begin:end] if count.exists())

    def seconds(self, begin=0):
        """The processor time of these processes without their starts."""
        return sum(float(count.with_suffix(".seconds").read_text()) for count in self.counts[begin:])


def answers_of(target, bucket=None):
    """The answers without what differs between two runs: ids and times."""
    store = open_store(str(target), "OUT", emulator_host=bucket and bucket.endpoint)
    found = []
    for name in sorted(name for name in store.list("") if name.startswith("part-")):
        for row in map(json.loads, store.read(name).splitlines()):
            body = row["response"]["body"]
            found.append(
                (row["custom_id"], row["response"]["status_code"], body["choices"], body["usage"]["completion_tokens"])
            )
    return found


def end_of(*processes, timeout_s=300):
    return [process.wait(timeout_s) for process in processes]


def kill_two(batch, target, random_):
    """Run all shards; two are killed once they have answered something, and started again."""
    before = len(batch.counts)
    shards = [batch.shard(target, i) for i in range(NUM_SHARDS)]
    for index in random_.sample(range(NUM_SHARDS), 2):
        give_up_at = time.monotonic() + 120
        while not batch.num_answered(before + index, before + index + 1) and shards[index].poll() is None:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        time.sleep(random_.random())
        shards[index].kill()
        shards[index].wait()
        shards[index] = batch.shard(target, index)
    assert end_of(*shards) == [0] * NUM_SHARDS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shards_that_are_killed_and_started_again_answer_as_one_process_does(tmp_path, cold_start):
    batch = Batch(tmp_path, NUM_LINES)
    assert end_of(batch.start(tmp_path / "one")) == [0]
    expected = answers_of(tmp_path / "one")
    assert [custom_id for custom_id, *_ in expected] == [str(i) for i in range(NUM_LINES)]
    random_ = random.Random(0)
    for number in range(NUM_ROUNDS):
        target, before = tmp_path / f"round-{number}", len(batch.counts)
        kill_two(batch, target, random_)
        assert answers_of(target) == expected
        twice = batch.num_answered(before) - NUM_LINES
        print(f"round {number}: {twice} lines answered twice")
        assert twice <= 2 * CHUNK_LINES
        manifest = json.loads((target / "manifest.json").read_text())
        assert manifest["counts"] == {"lines": NUM_LINES, "succeeded": NUM_LINES, "failed": 0}
        assert manifest["missing"] == []
        assert not (target / "claims").exists()
        assert not (target / "kept").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shards_that_are_killed_on_a_bucket_that_fails_answer_each_line_once(gcs_bucket, tmp_path, cold_start):
    batch = Batch(tmp_path, NUM_LINES, gcs_bucket)
    assert end_of(batch.start(tmp_path / "one")) == [0]
    expected = answers_of(tmp_path / "one")
    random_ = random.Random(1)
    for number in range(2):
        target, before = gcs_bucket.uri(f"round-{number}"), len(batch.counts)
        gcs_bucket.faults([
            Fault("POST .*upload", times=8, skip=3, cut_after_bytes=5),  # stored, and nobody knows
            Fault("POST .*upload", times=8, skip=15, status=503),
            Fault("alt=media", times=8, skip=2, cut_after_bytes=100),
            Fault("alt=media", times=4, skip=14, is_reset=True),
            Fault("prefix=", times=8, skip=3, status=503),
        ])  # fmt: skip
        kill_two(batch, target, random_)
        assert len(gcs_bucket.hits()) >= 20
        gcs_bucket.faults([])
        assert answers_of(target, gcs_bucket) == expected
        twice = batch.num_answered(before) - NUM_LINES
        print(f"round {number}: {twice} lines answered twice")
        assert twice <= 2 * CHUNK_LINES
        names = list(open_store(target, "OUT", emulator_host=gcs_bucket.endpoint).list(""))
        assert [name for name in names if name.startswith(("claims", "kept"))] == []


@pytest.mark.slow
def test_a_shard_that_is_stopped_keeps_the_answers_of_its_chunks(tmp_path, cold_start):
    batch = Batch(tmp_path, 600)
    target = tmp_path / "out"
    first = batch.start(target)
    while not batch.num_answered():
        assert first.poll() is None
        time.sleep(0.002)
    first.send_signal(signal.SIGTERM)
    assert end_of(first, timeout_s=10) == [128 + signal.SIGTERM]
    answered = batch.num_answered()
    stored = sum(path.read_text().count("\n") for path in target.rglob("*.jsonl"))
    assert 0 < answered < 600
    assert stored >= answered - 64  # those in flight are cut
    assert end_of(batch.shard(target, 1, 3)) == [0]
    assert batch.num_answered() <= 600 + answered - stored
    assert len(answers_of(target)) == 600


@pytest.mark.slow
def test_a_batch_between_buckets_becomes_one_file(gcs_bucket, tmp_path, cold_start):
    lines = [json.dumps(each) + "\n" for each in requests(300)]
    gcs_bucket.upload("in/a.jsonl", "".join(lines).encode())
    command = [sys.executable, "-m", "service", "batch", gcs_bucket.uri("in"), gcs_bucket.uri("out"), "--single"]
    environment = os.environ | {"STORAGE_EMULATOR_HOST": gcs_bucket.endpoint}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    store = open_store(gcs_bucket.uri("out"), "OUT", emulator_host=gcs_bucket.endpoint)
    assert list(store.list("")) == [
        "answers.jsonl", "job.json", "manifest.json", "part-00000-of-00002.jsonl", "part-00001-of-00002.jsonl"
    ]  # fmt: skip
    rows = [json.loads(row) for row in store.read("answers.jsonl").splitlines()]
    assert [row["custom_id"] for row in rows] == [str(i) for i in range(300)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_shards_take_about_the_processor_time_of_one_process(tmp_path, cold_start):
    batch = Batch(tmp_path, NUM_LINES)
    assert end_of(batch.start(tmp_path / "one")) == [0]
    alone_s = batch.seconds()
    assert end_of(*(batch.shard(tmp_path / "two", i, 2) for i in range(2))) == [0, 0]
    ratio = batch.seconds(1) / alone_s
    print(f"2 shards / 1 process: {ratio:.2f} of {alone_s:.1f} s")
    assert ratio <= 1.25
