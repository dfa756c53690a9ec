import pytest

from service.observability.trace_context import TraceContext, parse_trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_w3c_header_names_trace_span_and_sampling(header, is_sampled):
    assert parse_trace_context(header, "") == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        "x" * 10_000,
    ],
)
def test_a_malformed_w3c_header_is_as_none(header):
    assert parse_trace_context(header, "") is None
    assert parse_trace_context(header, f"{TRACE}/1;o=1") == TraceContext(TRACE, "0000000000000001", True)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"{TRACE}/18446744073709551615;o=1", TraceContext(TRACE, "f" * 16, True)),
        (f"{TRACE}/18446744073709551616;o=1", TraceContext(TRACE, None, True)),
        (f"{TRACE}/10;o=0", TraceContext(TRACE, "000000000000000a", False)),
        (f"{TRACE.upper()};o=1", TraceContext(TRACE, None, True)),
        (TRACE, TraceContext(TRACE, None, False)),
        ("0" * 32, None),
        (f"{TRACE}/x", None),
        (f"{TRACE}0", None),
    ],
)
def test_googles_header_has_a_decimal_span(header, expected):
    assert parse_trace_context("", header) == expected
