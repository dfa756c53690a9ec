"""An embedding may have more rows than its tokenizer: such an id has no text, as in transformers and vLLM."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from service.text.detokenizer import detokenizer_for
from service.text.tokenizer import Tokenizer
from tests.served import DEMO

BEYOND = (1, 63, 10_000, 2**31 - 1)  # after the last


def of_words() -> tokenizers.Tokenizer:
    """A tokenizer whose decoder works on whole texts."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return backend


@pytest.mark.parametrize(
    "backend", [tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json")), of_words()], ids=["bytes", "whole"]
)
def test_an_id_without_a_token_has_no_text_and_changes_none(backend: tokenizers.Tokenizer):
    tokenizer = Tokenizer(backend, num_rows=backend.get_vocab_size() + 64)
    ids = tokenizer.encode("a b a", add_special_tokens=False)
    random = np.random.RandomState(3)
    for beyond in BEYOND:
        other, detokenizer, text = backend.get_vocab_size() - 1 + beyond, detokenizer_for(tokenizer), ""
        mixed = [token_id for one in ids for token_id in (*[other] * random.randint(0, 3), one)] + [other]
        for token_id in mixed:
            text += detokenizer.push([token_id])
        assert text == tokenizer.decode(ids) == tokenizer.decode(mixed)
        assert tokenizer.token_bytes_of(other) == b""
