"""Ray Data with the demo model: `lost_node` loses one of two nodes meanwhile, `http` asks a server."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from service.offline.ray_data import AnswerBodies

FOLDER = os.environ["RAY_TMPDIR"]
# Fewer processors, and the read tasks of a lost node never run: actors hold all that are left.
NODE_CPUS, ACTOR_CPUS = 4, 0.5


class Noted(AnswerBodies):
    """Notes each answered batch in a file of its node."""

    def __init__(self):
        super().__init__("/v1/completions")
        self._file = Path(FOLDER, f"answered-{ray.get_runtime_context().get_node_id()}")

    def __call__(self, batch):
        answered = super().__call__(batch)
        with self._file.open("a") as file:
            file.write(f"{len(batch['number'])}\n")
        return answered


def rows(num_good):
    """Bodies with one right answer, one that the API refuses, and one that is no JSON."""
    for number in range(num_good):
        body = {"model": "levserve-demo", "prompt": f"Count from {number}", "max_tokens": 4, "temperature": 0}
        yield {"number": number, "body": json.dumps(body)}
    yield {"number": num_good, "body": json.dumps({"prompt": "of no model"})}
    yield {"number": num_good + 1, "body": "no JSON"}


def lost_node(num_rows):
    """Answer the rows with an actor on each of two nodes, one of which is killed once it has answered a batch."""
    cluster = Cluster()
    cluster.add_node(num_cpus=NODE_CPUS, include_dashboard=False)
    lost = cluster.add_node(num_cpus=NODE_CPUS)
    ray.init(address=cluster.address)
    cluster.wait_for_nodes()
    answered = Path(FOLDER, f"answered-{lost.node_id}")
    was_removed = threading.Event()

    def remove():
        while not answered.exists():
            time.sleep(0.05)
        cluster.remove_node(lost, allow_graceful=False)
        was_removed.set()

    threading.Thread(target=remove, daemon=True).start()
    dataset = ray.data.from_items(list(rows(int(num_rows))), override_num_blocks=16).map_batches(
        Noted,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=ACTOR_CPUS,
        batch_size=16,
        scheduling_strategy="SPREAD",
    )
    found = dataset.take_all()
    assert was_removed.wait(60)
    of_lost = sum(map(int, answered.read_text().split()))
    ray.shutdown()
    cluster.shutdown()
    return {"rows": found, "answered_by_lost": of_lost}


def http(url):
    """Ask a server by Ray's own processor."""
    from ray.data.llm import HttpRequestProcessorConfig, build_processor

    ray.init(num_cpus=NODE_CPUS, include_dashboard=False)
    config = HttpRequestProcessorConfig(url=url, qps=None)
    processor = build_processor(
        config,
        preprocess=lambda row: {"payload": json.loads(row["body"])},
        postprocess=lambda row: {"text": row["http_response"]["choices"][0]["text"]},
    )
    found = processor(ray.data.from_items(list(rows(50))[:50], override_num_blocks=4)).take_all()
    ray.shutdown()
    return {"texts": [row["text"] for row in found]}


if __name__ == "__main__":
    print(json.dumps({"lost_node": lost_node, "http": http}[sys.argv[1]](*sys.argv[2:]), default=int))
