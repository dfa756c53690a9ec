"""The demo model served from nothing, as `make serve` does: its pinned answers, alone and all at once, and the time."""

import json
import os
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.device_check.report import Row, write_part
from benchmarks.device_check.starts import running_service

PINNED = Path(__file__).parents[2] / "tests" / "demo_answers.json"


def main(out: Path, *, is_tiny: bool) -> None:
    """Serve the demo model twice, the second time from its bundle."""
    del is_tiny
    environment = {name: value for name, value in os.environ.items() if name != "MODEL_URI"}
    environment |= {"LOCAL_MODEL_CACHE": str(out / "cache_of_demo"), "READY_WHEN": "complete"}
    write_part(out, "demo", [_serve(out, f"start {number}", environment) for number in (1, 2)])


def _serve(out: Path, check: str, environment: dict[str, str]) -> Row:
    pinned = json.loads(PINNED.read_text())
    began_s = time.perf_counter()
    with running_service(out / f"demo {check}.log", environment) as service:
        seconds = round(time.perf_counter() - began_s, 2)
        if not service.is_ready:
            return {"check": check, "passed": False, "error": "not ready"}

        with urllib.request.urlopen(f"{service.url}/v1/models", timeout=60) as response:
            model = json.load(response)["data"][0]["id"]

        def answer(question: str) -> str:
            message = {"role": "user", "content": question}
            body = json.dumps({"model": model, "messages": [message], "temperature": 0}).encode()
            request = urllib.request.Request(
                f"{service.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["choices"][0]["message"]["content"]

        questions = [pair["question"] for pair in pinned]
        alone = [answer(question) for question in questions]
        with ThreadPoolExecutor(len(questions)) as pool:
            together = list(pool.map(answer, questions))
    expected = [pair["answer"] for pair in pinned]
    right = [sum(map(str.__eq__, answers, expected)) for answers in (alone, together)]
    return {
        "check": check,
        "passed": right == [len(expected)] * 2,
        "complete after, s": seconds,
        "pinned answers": len(expected),
        "right alone": right[0],
        "right together": right[1],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
