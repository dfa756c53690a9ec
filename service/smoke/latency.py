"""Latencies of a single client: not a benchmark, but enough to see that a deployment runs on the expected hardware."""

from statistics import median

from service.smoke.events import read_stream
from service.smoke.report import Finding
from service.smoke.session import Session
from service.smoke.vectors import vectors_request

MAX_TOKENS = 32
SHORTEST_SPAN_S = 0.05  # over a shorter span, network buffers dominate the rate
QUESTION = "Count from one to thirty in words."


def check_latency(session: Session) -> Finding:
    """Measure the median latencies of a few sequential streams, or of complete answers for an encoder."""
    if not session.generates:
        return _check_vector_latency(session)
    common = {"model": session.model_name, "max_tokens": MAX_TOKENS, "temperature": 0}
    if session.takes_messages:
        path, body = "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": QUESTION}]}
    else:
        path, body = "/v1/completions", {**common, "prompt": QUESTION}
    streams = [read_stream(session.client, path, body) for _ in range(session.num_requests)]
    first_s = median(stream.first_token_s for stream in streams)
    total_s = median(stream.last_token_s for stream in streams)
    facts = {
        "requests": len(streams),
        "completion_tokens": median(stream.completion_tokens for stream in streams),
        "first_token_seconds_p50": round(first_s, 4),
        "total_seconds_p50": round(total_s, 4),
    }
    detail = f"median of {len(streams)} streams: first token {first_s * 1e3:.0f} ms, all {total_s * 1e3:.0f} ms"
    rates = [
        (stream.completion_tokens - 1) / (stream.last_token_s - stream.first_token_s)
        for stream in streams
        if stream.last_token_s - stream.first_token_s > SHORTEST_SPAN_S
    ]
    if rates:
        facts["tokens_per_second_p50"] = round(median(rates), 1)
        detail += f", {median(rates):.0f} tokens/s"
    return Finding(detail, facts)


def _check_vector_latency(session: Session) -> Finding:
    path, body = vectors_request(session)
    seconds = [session.client.post(path, body).seconds for _ in range(session.num_requests)]
    facts = {"requests": len(seconds), "total_seconds_p50": round(median(seconds), 4)}
    return Finding(f"median of {len(seconds)} answers: {median(seconds) * 1e3:.0f} ms", facts)
