"""JSON texts that are one line to every reader."""

# What some clients' `splitlines` take for the end of a line, and JSON has as it is: U+0085, U+2028 and U+2029.
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def single_line(json_text: bytes) -> bytes:
    """Return a JSON text in UTF-8 without characters that end a line; they can stand only in its strings."""
    for character, escape in _LINE_ENDS:
        json_text = json_text.replace(character, escape)
    return json_text
