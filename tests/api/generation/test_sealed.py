"""Thinking that comes back is opened once its signature is right, and only as much of it as a request may have."""

import base64
import tracemalloc
import zlib

import pytest

from service.api.generation.sealed import MAX_TEXT_BYTES, OwnTexts, seal, sign
from service.api.http.call import Call
from service.api.http.keys import owner_of

KEY = b"key"
FORGED = base64.urlsafe_b64encode(zlib.compress(b"a" * MAX_TEXT_BYTES)).decode()


@pytest.mark.parametrize("text", ["Hm. 🌍", "", "\ud800", "a" * MAX_TEXT_BYTES])
def test_a_sealed_text_is_read_with_its_key_alone(text):
    assert OwnTexts(KEY).unsealed(seal(text, KEY)) == text
    assert OwnTexts(b"another").unsealed(seal(text, KEY)) is None


@pytest.mark.parametrize(
    "sealed",
    [f"{FORGED}.{sign('a' * MAX_TEXT_BYTES, KEY)}", f"{FORGED}.{sign(FORGED, KEY)}", f"{FORGED}.", FORGED],
    ids=["a shown text's signature", "the packed text's as if it were shown", "none", "no separator"],
)
def test_what_is_not_signed_as_packed_is_not_opened(sealed):
    tracemalloc.start()
    try:
        assert OwnTexts(KEY).unsealed(sealed) is None
        assert tracemalloc.get_traced_memory()[1] < MAX_TEXT_BYTES / 8
    finally:
        tracemalloc.stop()


def test_the_texts_of_one_request_have_a_size_together():
    texts, sealed = OwnTexts(KEY), seal("a" * (MAX_TEXT_BYTES // 2), KEY)
    assert [texts.unsealed(sealed) is not None for _ in range(3)] == [True, True, False]
    assert texts.unsealed(seal("a", KEY)) is None
    assert texts.read("shown", sign("shown", KEY)) == "shown"


def test_a_batch_reads_what_its_owner_was_sent_and_no_others_batch_does():
    client = Call(id="a", cache_salt=b"digest of a key")
    batch = Call(id="b", cache_salt=owner_of(client.cache_salt).encode(), batch_timeout_s=1.0)
    other = Call(id="c", cache_salt=owner_of(b"another digest").encode(), batch_timeout_s=1.0)
    sealed = seal("Hm.", client.seal_key)
    assert OwnTexts(batch.seal_key).unsealed(sealed) == "Hm."
    assert OwnTexts(other.seal_key).unsealed(sealed) is None
