"""`make bench-audio`: Levserve over HTTP and its peers, alternately in one run, on real weights of Whisper tiny.en.

    python -m benchmarks.hearing [--quick] [--runs N] [--output FOLDER]

Every run hears other clips, spoken by espeak-ng, each a little shorter than one window. With each measurement stands
the CPU time of the contender's processes. It writes hearing.json (every run) and hearing.md (tables).
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks import timed_starts
from benchmarks.contenders import ROOT, HttpServer, Worker, levserve
from benchmarks.ggml_export import export_ggml
from benchmarks.machine import begun, load_average, processor_s
from benchmarks.peers.environment import FASTER_WHISPER, TRANSFORMERS, WHISPERCPP, Environment, PeerAbsent
from benchmarks.quiet import MAX_ATTEMPTS, Quiet
from benchmarks.report import markdown_table, write_files
from benchmarks.rounds import say
from examples.hear.spoken import SAMPLING_RATE, clip, speak, wave_file
from examples.hear.tiny_en import write_checkpoint, write_ctranslate2

SETTINGS = {"DTYPE": "float32", "MAX_AUDIO_BYTES": str(2**27), "MAX_OPEN_BODY_BYTES": str(2**29)}  # of an hour in FLAC
AT_ONCE = 16
WINDOW_S, SENTENCES = 30, 6
TIMEOUT_S = 900
HOUR_S = 3600
OURS = "Levserve over HTTP"
CALLS = "faster-whisper, 2 threads"
WORKERS = "faster-whisper, 2 workers"
BATCH = "CTranslate2, one batch"
TORCH = "transformers, best batch"
CPP = "whisper.cpp, 2 threads"
# Of the seconds of the other, divided by those of Levserve.
TARGETS = {
    (1, CALLS): 0.9,
    (1, TORCH): 1.3,
    (1, CPP): 0.9,
    (AT_ONCE, CALLS): 1.1,
    (AT_ONCE, WORKERS): 1.1,
    (AT_ONCE, BATCH): 0.85,
    (AT_ONCE, TORCH): 1.1,
    (AT_ONCE, CPP): 1.2,
}
MOST_FIRST_DELTA, MOST_START = 1.5, 1.6
_attempts = itertools.count(1)


def main() -> None:
    """Measure and write the results."""
    options = _parse_options()
    folder = ROOT / ".cache" / "bench"
    checkpoint, converted = write_checkpoint(folder / "tiny.en"), write_ctranslate2(folder / "tiny.en-ctranslate2")
    results: dict[str, Any] = {
        **begun("benchmarks.hearing"),
        "absent": {},
        "contenders": {},
        "runs": [],
    }
    with _started(checkpoint, converted, folder, results) as (server, workers):
        quiet = Quiet((server.pid, *(worker.pid for worker in workers.values())), options.patience, options.attempts)
        for record in _measure(server, workers, folder, quiet, options.runs):
            results["runs"].append(record)
        if not options.quick:
            results["hour"] = _hour(server, folder)
    if not options.quick:
        results["starts"] = list(_starts(checkpoint, folder, options))
    results["load_average_after"] = load_average()
    write_files("hearing", results, _markdown(results), options.output)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hearing", description="Measure how fast sound is heard."
    )
    parser.add_argument("--quick", action="store_true", help="clips alone: no long recording, no starts")
    parser.add_argument("--runs", type=int, default=3, help="number of runs")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--attempts", type=int, default=MAX_ATTEMPTS, help="attempts to measure undisturbed")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    options.output = options.output or ROOT / (".cache/bench/quick" if options.quick else "benchmarks/results")
    return options


@contextmanager
def _started(
    checkpoint: Path, converted: Path, folder: Path, results: dict[str, Any]
) -> Iterator[tuple[HttpServer, dict[str, Worker]]]:
    """Start the service and its peers, and stop them at the end."""
    with ExitStack() as stack:
        say("starting the contenders")
        server = stack.enter_context(closing(levserve(checkpoint, folder, SETTINGS)))
        workers: dict[str, Worker] = {}
        ggml = export_ggml(checkpoint, folder / "tiny.en.ggml")
        peers: dict[str, tuple[Environment, str, str, tuple[str, ...]]] = {
            CALLS: (FASTER_WHISPER, "faster-whisper", "faster_whisper_calls", (str(converted), "2", "1")),
            WORKERS: (FASTER_WHISPER, "faster-whisper", "faster_whisper_calls", (str(converted), "1", "2")),
            TORCH: (TRANSFORMERS, "transformers", "transformers_whisper", (str(checkpoint),)),
            CPP: (WHISPERCPP, "whispercpp", "whispercpp", (str(ggml), "2")),
        }
        for name, (environment, own, module, arguments) in peers.items():
            try:
                python = environment.python(folder / own)
                command = [str(python), "-m", f"benchmarks.peers.{module}", *arguments]
                workers[name] = stack.enter_context(closing(Worker(command, folder / f"{module}.log")))
                results["contenders"][name] = workers[name].facts
            except (PeerAbsent, OSError, RuntimeError) as error:
                results["absent"][name] = str(error)
                say(f"absent: {name}: {error}")
        yield server, workers


def _measure(
    server: HttpServer, workers: Mapping[str, Worker], folder: Path, quiet: Quiet, num_runs: int
) -> Iterator[dict[str, Any]]:
    """Measure every contender in turn, once to warm up, then `num_runs` times; yield each measurement."""
    seeds = itertools.count()
    for run in range(-1, num_runs):
        for count in (1, AT_ONCE) if run >= 0 else (1,):
            clips = [_clip(folder / "clips", next(seeds)) for _ in range(count)]
            paths: Any = [str(path) for path in clips]
            tasks: dict[str, Callable[[], dict[str, Any]]] = {
                OURS: partial(_timed, server.pid, partial(_send, server, clips))
            }
            for name, worker in workers.items():
                tasks[name] = partial(_timed, worker.pid, partial(worker.ask, "transcribe", paths, 0))
            if count > 1 and CALLS in workers:
                tasks[BATCH] = partial(workers[CALLS].ask, "batch", paths, 0)
            for name, task in tasks.items():
                result, disturbance = quiet.measure(task)
                if run < 0:
                    continue
                speed = count * WINDOW_S / result["seconds"]
                say(f"run {run + 1}/{num_runs} {count} {name}: {speed:.1f} s of sound/s, CPU {result['cpu_s']:.1f} s")
                facts = {"contender": name, "count": count, "run": run, "disturbance": disturbance}
                num_words = sum(len(text.split()) for text in result.pop("texts"))
                yield facts | {key: result[key] for key in ("seconds", "cpu_s")} | {"num_words": num_words}


def _clip(folder: Path, seed: int) -> Path:
    """Return the file of a clip of one window, spoken if it is not there."""
    path = folder / f"{seed}.wav"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        samples = speak(clip(seed, SENTENCES))[: WINDOW_S * SAMPLING_RATE]
        path.write_bytes(wave_file(np.pad(samples, (0, WINDOW_S * SAMPLING_RATE - len(samples)))))
    return path


def _send(server: HttpServer, paths: Sequence[Path]) -> dict[str, Any]:
    """Have as many clients as there are files send one each; return the seconds of all, and the texts."""
    # A window that was heard before would not be encoded again: the last sample of each attempt is another one.
    last = next(_attempts).to_bytes(2, "little")
    contents = [path.read_bytes()[: -len(last)] + last for path in paths]
    with ThreadPoolExecutor(len(paths)) as threads, _client(server) as client:
        began_s = time.perf_counter()
        texts = list(threads.map(partial(_heard, client), contents))
        return {"seconds": time.perf_counter() - began_s, "texts": texts}


def _client(server: HttpServer) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=TIMEOUT_S)


def _heard(client: httpx.Client, content: bytes) -> str:
    fields = {"model": "bench", "language": "en"}
    answer = client.post("/audio/transcriptions", data=fields, files={"file": ("clip.wav", content)})
    return answer.raise_for_status().json()["text"]


def _timed(pid: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a measurement, and the CPU seconds of a process and its children meanwhile."""
    began_s = processor_s(pid)
    return work() | {"cpu_s": processor_s(pid) - began_s}


def _hour(server: HttpServer, folder: Path) -> dict[str, float]:
    """Time the first text of an hour of sound, and the parts of which it consists."""
    clips = [_clip(folder / "clips", 10_000 + seed) for seed in range(20)]
    parts = [np.frombuffer(path.read_bytes()[44:], "<i2") for path in clips]
    long = np.resize(np.concatenate(parts), HOUR_S * SAMPLING_RATE)
    window = parts[0]
    with _client(server) as client:
        one_s = statistics.median(
            _seconds(partial(_heard, client, wave_file(np.roll(window, shift)))) for shift in (160, 320, 480)
        )
        features_s = _features_s(long)
        content = _flac(long)
        decode_s = _decode_s(content)
        first_s = _first_delta_s(client, content)
    say(f"an hour: text after {first_s:.1f} s; decoding {decode_s:.1f}, features {features_s:.1f}, one {one_s:.1f}")
    return {"first_s": first_s, "decode_s": decode_s, "features_s": features_s, "window_s": one_s}


def _seconds(work: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _flac(samples: np.ndarray) -> bytes:
    from tests.media.audio_files import audio_file

    return audio_file("flac", samples)


def _decode_s(content: bytes) -> float:
    from service.media.decode import decode_audio

    return _seconds(lambda: decode_audio(content, 2 * HOUR_S, None))


def _features_s(samples: np.ndarray) -> float:
    from service.media.log_mel import log_mel

    return _seconds(lambda: [log_mel(part / 32768, 80) for part in np.split(samples, HOUR_S // WINDOW_S)])


def _first_delta_s(client: httpx.Client, content: bytes) -> float:
    fields = {"model": "bench", "language": "en", "stream": "true"}
    began_s = time.perf_counter()
    with client.stream("POST", "/audio/transcriptions", data=fields, files={"file": ("hour.flac", content)}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data:") and "transcript.text.delta" in line:
                return time.perf_counter() - began_s
    raise RuntimeError("nothing was heard")


def _starts(checkpoint: Path, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time starts with a bundle to the first text, each after its floor: jax imported, the bytes read."""
    content = _clip(folder / "clips", 20_000).read_bytes()

    def ask(port: int, _: list[int]) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=TIMEOUT_S) as client:
            _heard(client, content)

    warm = partial(timed_starts.levserve, str(checkpoint), folder / "cache", [], SETTINGS, ask=ask)
    quiet = Quiet((), options.patience, options.attempts)
    for run in range(options.runs):
        for name, task in {"floor": partial(timed_starts.floor, checkpoint), "warm": warm}.items():
            record, _ = quiet.measure(task)
            yield {"start": name, "run": run, "seconds": record["first_token_s"]}
            say(f"run {run + 1}/{options.runs} start {name}: {record['first_token_s']:.2f} s")


def _markdown(results: dict[str, Any]) -> str:
    machine, runs = results["machine"], results["runs"]
    disturbance = statistics.median(record["disturbance"] for record in runs)
    head = (
        f"{machine['processor']}, {machine['cores']} cores; tiny.en in float32; medians. `{results['command']}`, "
        f"{results['began'][:10]}; other processes used {disturbance:.2f} cores meanwhile."
    )
    rows = []
    for count in (1, AT_ONCE):
        for name in dict.fromkeys(record["contender"] for record in runs if record["count"] == count):
            own = [record for record in runs if (record["contender"], record["count"]) == (name, count)]
            speed = statistics.median(count * WINDOW_S / record["seconds"] for record in own)
            cpu_s = statistics.median(record["cpu_s"] for record in own)
            target = TARGETS.get((count, name))
            bound = "" if target is None else f"≥ {target}"
            ratios = (
                ["", ""] if name == OURS else [f"{_ratio(runs, name, count, key):.2f}" for key in ("seconds", "cpu_s")]
            )
            rows.append([f"{count}: {name}", f"{speed:.1f}", f"{cpu_s:.1f}", *ratios, bound])
    columns = ["files at once", "s of sound/s", "CPU s", "Levserve is faster by", "by CPU time", "bound"]
    parts = [head, markdown_table(columns, rows), *_long(results), *_of_starts(results)]
    return "\n\n".join([*parts, *(f"Absent: {name}: {reason}" for name, reason in results["absent"].items())]) + "\n"


def _ratio(runs: Sequence[Mapping[str, Any]], name: str, count: int, key: str) -> float:
    """Return the median over runs of another contender's figure divided by that of Levserve."""
    found = {(record["run"], record["contender"]): record[key] for record in runs if record["count"] == count}
    return statistics.median(found[run, name] / found[run, OURS] for run, contender in found if contender == name)


def _long(results: Mapping[str, Any]) -> list[str]:
    hour = results.get("hour")
    if hour is None:
        return []
    least = hour["decode_s"] + hour["features_s"] + hour["window_s"]
    return [
        f"An hour of sound: first text after {hour['first_s']:.1f} s, {hour['first_s'] / least:.2f} times what "
        f"decoding it ({hour['decode_s']:.1f} s), its features ({hour['features_s']:.1f} s) and one window "
        f"({hour['window_s']:.1f} s) take (bound: {MOST_FIRST_DELTA})."
    ]


def _of_starts(results: Mapping[str, Any]) -> list[str]:
    starts = results.get("starts")
    if not starts:
        return []
    warm_s, floor_s = (
        statistics.median(record["seconds"] for record in starts if record["start"] == name)
        for name in ("warm", "floor")
    )
    return [
        f"A start with a bundle hears its first clip after {warm_s:.1f} s, {warm_s / floor_s:.2f} times its floor of "
        f"{floor_s:.1f} s (bound: {MOST_START})."
    ]


if __name__ == "__main__":
    main()
