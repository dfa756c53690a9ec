"""Starts whose weights come over a link of a fixed rate: seconds to the first token beside bytes ÷ rate.

    python -m benchmarks.slow_start [--rates 1024,100] [--runs 3] [--folder FOLDER]

The bucket is an emulator on this machine behind a proxy that paces all connections together; the model is a Llama of 1
GiB in bfloat16, and its bundle is on disk. `bare` reads the same bytes over as many connections and keeps none: what
proxy and emulator can do at best.
"""

import argparse
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks import timed_starts
from benchmarks.checkpoint import Geometry, make_checkpoint, word_ids, write_weights
from benchmarks.contenders import ROOT
from benchmarks.gcs_emulator import emulator, upload
from benchmarks.loading_contender import BUCKET
from benchmarks.slow_link import slow_link

MEBIBYTE = 1024 * 1024
ONE_GIBIBYTE = Geometry(
    hidden_size=1536, intermediate_size=6144, num_layers=14, num_heads=24, num_kv_heads=8, vocab_size=49152
)
SETTINGS = {"MODEL_STREAM": "true", "MAX_MODEL_LEN": "512", "MAX_NUM_SEQS": "1"}
NUM_CONNECTIONS = 8
PROMPT_TOKENS = 16


def main() -> None:
    """Measure, and print a line of JSON for each rate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_start", description=__doc__)
    parser.add_argument("--rates", default="1024,100", help="of the link, in MiB/s, separated by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "bench" / "slow_start")
    options = parser.parse_args()
    checkpoint = make_checkpoint(
        options.folder / "one_gibibyte", ONE_GIBIBYTE, partial(write_weights, dtype="bfloat16")
    )
    num_bytes = (checkpoint / "model.safetensors").stat().st_size
    prompt, cache = word_ids(checkpoint)[:PROMPT_TOKENS], options.folder / "cache"
    with emulator(options.folder / "emulator.log") as url:
        upload(url, checkpoint, "model")
        shutil.rmtree(cache, ignore_errors=True)
        _start(url, cache, prompt)  # which stores the bundle
        for rate in map(int, options.rates.split(",")):
            with slow_link(url, rate * MEBIBYTE) as link:
                bare = [_read(link, num_bytes) for _ in range(options.runs)]
                starts = [_start(link, cache, prompt) for _ in range(options.runs)]
            of_rate_s = num_bytes / (rate * MEBIBYTE)
            found = {"mebibytes_per_s": rate, "bytes": num_bytes, "bytes_per_rate_s": round(of_rate_s, 2)}
            first_s = [round(start["first_token_s"], 2) for start in starts]
            found |= {"bare_s": [round(seconds, 2) for seconds in bare], "first_token_s": first_s}
            found["beyond_1.1_times_s"] = [round(seconds - 1.1 * of_rate_s, 2) for seconds in first_s]
            print(json.dumps(found), flush=True)


def _start(url: str, cache: Path, prompt: list[int]) -> dict[str, float]:
    settings = SETTINGS | {"STORAGE_EMULATOR_HOST": url}
    return timed_starts.levserve(f"gs://{BUCKET}/model", cache, prompt, settings)


def _read(url: str, num_bytes: int) -> float:
    """Return the seconds in which plain connections read an object."""
    address = f"{url}/storage/v1/b/{BUCKET}/o/model%2Fmodel.safetensors?alt=media"
    share = -(-num_bytes // NUM_CONNECTIONS)

    def read(first: int) -> None:
        request = Request(address, headers={"Range": f"bytes={first}-{min(first + share, num_bytes) - 1}"})
        buffer = bytearray(MEBIBYTE)
        with urlopen(request, timeout=600) as answer:
            while answer.readinto(buffer):
                pass

    began_s = time.perf_counter()
    with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        list(pool.map(read, range(0, num_bytes, share)))
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
