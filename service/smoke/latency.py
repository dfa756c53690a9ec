"""Latencies of a single client: not a benchmark, but enough to see that a deployment runs on the expected hardware."""

from collections.abc import Sequence
from statistics import median

from service.smoke.events import read_stream
from service.smoke.expectations import expect_status
from service.smoke.failures import Reply
from service.smoke.hearing import hear
from service.smoke.report import Finding
from service.smoke.session import Kind, Session
from service.smoke.vectors import vectors_request

MAX_TOKENS = 32
SHORTEST_SPAN_S = 0.05  # over a shorter span, network buffers dominate the rate
QUESTION = "Count from one to thirty in words."


def check_latency(session: Session) -> Finding:
    """Measure the median latencies of a few sequential streams, or of complete answers of a model without tokens."""
    match session.kind:
        case Kind.VECTORS:
            path, body = vectors_request(session)
            return _of_answers([session.client.post(path, body) for _ in range(session.num_requests)])
        case Kind.TRANSCRIPTS:
            return _of_answers([hear(session) for _ in range(session.num_requests)])
        case Kind.TEXT:
            return _of_streams(session)


def _of_streams(session: Session) -> Finding:
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


def _of_answers(replies: Sequence[Reply]) -> Finding:
    for reply in replies:
        expect_status(reply, 200)
    total_s = median(reply.seconds for reply in replies)
    facts = {"requests": len(replies), "total_seconds_p50": round(total_s, 4)}
    return Finding(f"median of {len(replies)} answers: {total_s * 1e3:.0f} ms", facts)
