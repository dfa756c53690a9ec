"""The child process of a contender without HTTP: one JSON object per line in, one out.

    {"ask": "generate", "prompts": [[5, 7], [9, 4]], "output_tokens": 3}
    {"seconds": 0.1, "token_ids": [[1, 2, 3], [4, 5, 6]]}

It runs in the environments of peers, also on Python 3.11, and imports only the standard library.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# From prompts and the number of tokens to generate to a result with at least `token_ids`.
Generate = Callable[[list[list[int]], int], dict[str, Any]]


def run_worker(load: Callable[[], tuple[Mapping[str, Generate], dict[str, Any]]]) -> None:
    """Load a model, print its facts, then answer until the input ends.

    Args:
        load: returns the tasks by name, and the facts.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a library must not look like an answer
    asked, facts = load()
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        result = asked[task["ask"]](task["prompts"], task["output_tokens"])
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds} | result), file=answers, flush=True)
