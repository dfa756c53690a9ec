"""`levserve batch` as a process: killed in the middle, it goes on where it stopped and does no line twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.served import SMALL


def start(source, target, cache) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "service", "batch", str(source), str(target), "--log-format", "json"]
    # One at a time, so that there is time to kill it in the middle.
    settings = ["--max-concurrent-requests", "1", "--local-model-cache", str(cache)]
    for name, value in SMALL.items():
        settings += [f"--{name.replace('_', '-')}", value]
    return subprocess.Popen([*arguments, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_batch_that_was_killed_goes_on_and_is_complete(tmp_path, one_sequence, demo_answers):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {
            "custom_id": f"{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "levserve-demo",
                "prompt": "Count",
                "max_tokens": 60,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        for number in range(40)
    ]
    question = {"model": "levserve-demo", "temperature": 0}
    question["messages"] = [{"role": "user", "content": demo_answers[0]["question"]}]
    lines.append({"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": question})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part = tmp_path / "out.jsonl.part"

    first = start(source, target, one_sequence.cache)
    give_up_at = time.monotonic() + 120
    while not part.exists() or part.stat().st_size < 2000:
        assert first.poll() is None, first.stdout.read()
        assert time.monotonic() < give_up_at
        time.sleep(0.002)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    done = len(part.read_text().splitlines())
    assert 0 < done < len(lines)
    assert not target.exists()

    second = start(source, target, one_sequence.cache)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 0, output
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(line["custom_id"] for line in lines)
    by_id = {answer["custom_id"]: answer["response"] for answer in answers}
    assert by_id["chat"]["body"]["choices"][0]["message"]["content"] == demo_answers[0]["answer"]
    assert not part.exists()
