"""The processor time of one scrape: all series, and the few that endpoint pickers read every 50 ms.

Run it with `python -m benchmarks.scrape`. The scraper is a process of its own, whose time does not count.
"""

import subprocess
import sys
import time

from service.observability.metrics import LOAD_PATH, Metrics
from service.observability.metrics_port import metrics_port

NUM_SCRAPES = {"/metrics": 40, LOAD_PATH: 4000}
NUM_MODELS = (1, 10)
SCRAPER = """
import http.client, sys
port, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
connection = http.client.HTTPConnection("127.0.0.1", port)
for _ in range(count):
    connection.request("GET", path, headers={"user-agent": "Go-http-client/1.1", "accept": "text/plain"})
    assert connection.getresponse().read()
"""


def busy_metrics(num_models: int) -> Metrics:
    """Return the series of models that have answered requests."""
    metrics = Metrics(has_vllm_names=True)
    for i in range(num_models):
        model = metrics.of_model(f"organisation/model-{i}")
        model.load.num_running, model.load.num_pages, model.load.page_size = 7, 4096, 16
        model.cache_config_info.labels("16", "4096").set(1)
        model.engine_steps.labels("decode").inc()
        model.request_success.labels("stop").inc()
    return metrics


def scrape_ms(metrics: Metrics, path: str) -> float:
    """Return the milliseconds of this process for a scrape at METRICS_PORT, over one connection."""
    with metrics_port(metrics, "127.0.0.1", 0) as port:
        count = NUM_SCRAPES[path]
        begin_s = time.process_time()
        subprocess.run([sys.executable, "-c", SCRAPER, str(port), path, str(count)], check=True)
        return (time.process_time() - begin_s) / count * 1000


def main() -> None:
    """Print a table."""
    print("| series | models | processor time of a scrape (ms) |\n|---|---|---|")
    for path in NUM_SCRAPES:
        for num_models in NUM_MODELS:
            print(f"| `{path}` | {num_models} | {scrape_ms(busy_metrics(num_models), path):.3f} |", flush=True)


if __name__ == "__main__":
    main()
