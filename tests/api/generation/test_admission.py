import pytest

from service.api.generation.admission import token_budget
from service.errors import ContextLengthExceeded


def budget(prompt_tokens, requested=None, default=None):
    return token_budget(
        prompt_tokens=prompt_tokens,
        requested=requested,
        default=default,
        max_model_len=100,
        param="prompt",
    )


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
