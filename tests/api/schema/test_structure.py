import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import structure
from service.api.structure import MAX_STRUCTURE, PIECE_BYTES, check_structure
from service.errors import RequestError

VALUES = st.recursive(
    st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def marks(value):
    """The names, objects and lists of a value."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(marks, value.values()))
    return 1 + sum(map(marks, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("piece", [1, 2, 7, PIECE_BYTES])
@given(value=VALUES, is_ascii=st.booleans())
def test_what_is_counted_is_the_structure_and_no_text(piece, value, is_ascii):
    content = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "PIECE_BYTES", piece)
        assert structure.count_structure(content) == marks(value)


@pytest.mark.parametrize("text", ['"\\', ":[{" * 100, "\\\\", '\\"'])
def test_a_text_may_have_as_many_marks_as_it_likes(text):
    check_structure(json.dumps({"prompt": text * MAX_STRUCTURE}).encode())


@pytest.mark.parametrize("make", [lambda n: [[]] * (n - 1), lambda n: {str(i): 1 for i in range(n - 1)}])
def test_the_limit_is_exact(make):
    check_structure(json.dumps(make(MAX_STRUCTURE)).encode())
    with pytest.raises(RequestError, match="more than 131072 names, objects and lists"):
        check_structure(json.dumps(make(MAX_STRUCTURE + 1)).encode())
