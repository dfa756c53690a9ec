"""A tokenizer with more tokens than the model: the request whose text has one is refused, and the next is answered."""

import pytest
import tokenizers

from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import MODEL, TOKENIZER, Service

pytestmark = pytest.mark.anyio


async def test_a_request_with_such_a_token_is_refused_and_the_next_is_answered():
    backend = tokenizers.Tokenizer.from_str(TOKENIZER.backend.to_str())
    num_rows = backend.get_vocab_size()
    backend.add_special_tokens(["<|beyond|>"])
    model = {"tokenizer": Tokenizer(backend, num_rows=num_rows), "vocab_size": num_rows}
    service = Service(model=model)
    bodies = {
        "/v1/completions": ("prompt", "hi <|beyond|>"),
        "/v1/chat/completions": ("messages", [{"role": "user", "content": "<|beyond|>"}]),
        "/tokenize": ("prompt", "<|beyond|>"),
    }
    for path, (name, value) in bodies.items():
        refused = await service.post(path, {"model": MODEL, name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert "<|beyond|>" in refused.json()["error"]["message"]
        fine = [{"role": "user", "content": "hi"}] if name == "messages" else "hi"
        assert (await service.post(path, {"model": MODEL, name: fine})).status_code == 200
