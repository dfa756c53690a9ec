from types import SimpleNamespace

import pytest

from service.api.conversation import Options
from service.api.generation.admission import cache_salt_of, max_tokens_of
from service.api.http.call import Call
from service.api.schema.completions import CompletionRequest
from service.errors import ContextLengthExceeded
from service.text.generation_defaults import NO_DEFAULTS


def budget(prompt_tokens, requested=None, default=None):
    call = Call(id="a")
    call.api = SimpleNamespace(default_max_tokens=None)
    model = SimpleNamespace(max_model_len=100, operator_defaults=NO_DEFAULTS)
    options = Options(model="m", max_tokens=requested)
    return max_tokens_of(call, model, options, range(prompt_tokens), param="prompt", default=default)


@pytest.mark.parametrize(
    ("prompt_tokens", "requested", "default", "expected"),
    [
        (10, None, None, 90),
        (10, None, 16, 16),
        (90, None, 16, 10),
        (10, 5, 16, 5),
        (10, 90, None, 90),
        (99, 1, None, 1),
        (10, 91, None, 90),
        (10, 2**63 - 1, 16, 90),
        (10, 0, None, 1),
    ],
)
def test_the_budget_is_what_was_asked_or_what_fits(prompt_tokens, requested, default, expected):
    assert budget(prompt_tokens, requested, default) == expected


@pytest.mark.parametrize(
    ("prompt_tokens", "requested", "param"),
    [
        (100, None, "prompt"),
        (100, 1, "prompt"),
        (10**6, 5, "prompt"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(prompt_tokens, requested, param):
    with pytest.raises(ContextLengthExceeded) as caught:
        budget(prompt_tokens, requested)
    assert caught.value.param == param
    assert caught.value.prompt_tokens == prompt_tokens
    assert caught.value.max_model_len == 100


@pytest.mark.parametrize("stated", [None, "mine", "\ud800"])
def test_two_keys_share_no_salt_whatever_their_requests_say(stated):
    """A client that guesses another's `cache_salt` must not learn by the time of its answers what the other asked."""
    body = CompletionRequest.model_construct(cache_salt=stated)
    one, two, none = (Call(id="a", cache_salt=digest) for digest in (b"one", b"two", b""))
    assert len({cache_salt_of(call, body) for call in (one, two, none)}) == 3
    assert cache_salt_of(one, body) == cache_salt_of(Call(id="b", cache_salt=b"one"), body)
    assert cache_salt_of(one, body) != cache_salt_of(one, CompletionRequest.model_construct(cache_salt="another"))
