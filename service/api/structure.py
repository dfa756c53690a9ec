"""Count the names, objects and lists of a JSON text before it is parsed, and refuse too many.

Parsing makes the objects of the whole text in one call, which no other thread of the interpreter can interrupt. Names,
objects and lists take most of its time: four megabytes of them half a second, four megabytes of text a millisecond.
"""

from service.errors import RequestError

# Names, objects and lists of one request. MAX_OBJECTS messages of two fields have fewer than half as many.
MAX_STRUCTURE = 2**17
MARKS = (b":", b"[", b"{")
# Text is scanned in pieces of this size, so that other threads get the GIL.
PIECE_BYTES = 64 * 1024


def check_structure(content: bytes) -> None:
    """Check that a JSON text has few enough names, objects and lists.

    Raises:
        RequestError: it has too many.
    """
    if _count(content) > MAX_STRUCTURE and count_structure(content) > MAX_STRUCTURE:
        message = f"The request's body has more than {MAX_STRUCTURE} names, objects and lists. Send several requests."
        raise RequestError(message)


def _count(content: bytes) -> int:
    return sum(content.count(mark) for mark in MARKS)


def count_structure(content: bytes) -> int:
    """Return the number of marks that are no text, or a smaller one that is already too large."""
    num_marks, begin, is_inside = 0, 0, False
    while begin < len(content) and num_marks <= MAX_STRUCTURE:
        piece = content[begin : begin + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last byte escapes the next
            piece = content[begin : begin + PIECE_BYTES + 1]
        begin += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        num_marks += _count(b"".join(parts[is_inside::2]))
        is_inside ^= len(parts) % 2 == 0
    return num_marks
