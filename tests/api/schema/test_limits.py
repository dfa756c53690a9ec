"""Every limit of a field: its last value is taken, and one beyond it is refused by the field's name."""

import json

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.wire import parse
from service.errors import InvalidParameter, RequestError

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
BODIES = {ChatCompletionRequest: CHAT, CompletionRequest: TEXT}
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def check(kind, **fields):
    return parse(kind, json.dumps(BODIES[kind] | fields).encode())


def refused_param(kind, **fields):
    with pytest.raises(InvalidParameter) as caught:
        check(kind, **fields)
    return caught.value.param


@pytest.mark.parametrize("best_of", [1, 8])
def test_best_of_is_taken_if_it_is_the_number_of_choices(best_of):
    assert check(CompletionRequest, n=best_of, best_of=best_of).best_of == best_of
    assert refused_param(CompletionRequest, n=best_of, best_of=9 - best_of) == "best_of"
    assert refused_param(CompletionRequest, n=best_of, best_of=0) == "best_of"


def test_too_many_biases_are_refused_with_the_limit():
    with pytest.raises(InvalidParameter, match="1025 tokens are over the limit of 1024"):
        check(CompletionRequest, logit_bias={str(token_id): 1 for token_id in range(1025)})


def test_too_many_prompts_are_refused_with_the_limit():
    with pytest.raises(InvalidParameter, match="65 prompts are over the limit of 64"):
        check(CompletionRequest, prompt=["a"] * 65)
    with pytest.raises(InvalidParameter, match="33 prompts times n = 2 are over the limit of 64"):
        check(CompletionRequest, prompt=["a"] * 33, n=2)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(
    "field",
    ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"],
)
def test_no_field_takes_a_number_that_is_not_finite(field, number):
    value = f'{{"1": {number}}}' if field == "logit_bias" else number
    with pytest.raises(RequestError):
        parse(CompletionRequest, f'{{"model": "m", "prompt": "hi", "{field}": {value}}}'.encode())


def test_a_refused_bias_echoes_the_beginning_of_its_key():
    with pytest.raises(InvalidParameter) as caught:
        check(CompletionRequest, logit_bias={"abcdefghijklmnopqrstuvwxyz": 1})
    assert "'abcdefghijklmnop'" in caught.value.message


@pytest.mark.parametrize(
    ("num_prompts", "n", "is_taken"), [(64, 1, True), (8, 8, True), (16, 4, True), (13, 5, False), (64, 2, False)]
)
def test_prompts_times_choices_are_at_most_sixty_four(num_prompts, n, is_taken):
    if is_taken:
        check(CompletionRequest, prompt=["a"] * num_prompts, n=n)
    else:
        assert refused_param(CompletionRequest, prompt=["a"] * num_prompts, n=n) == "n"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (7, "prompt"),
        ({"a": 1}, "prompt"),
        (True, "prompt"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([["a"]], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([[1], [2, "b"]], "prompt[1][1]"),
        (["a", ["b"]], "prompt[1][0]"),
    ],
)
def test_any_other_prompt_is_refused_by_its_place(prompt, param):
    assert refused_param(CompletionRequest, prompt=prompt) == param


def test_a_parsed_request_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        check(CompletionRequest).n = 2


def test_a_limit_is_told_with_the_field_that_states_it():
    def limit(kind, **fields):
        options = check(kind, **fields).options()
        return options.max_tokens, options.max_tokens_at

    assert limit(CompletionRequest, max_tokens=5) == (5, "max_tokens")
    assert limit(CompletionRequest) == (None, "max_tokens")
    assert limit(ChatCompletionRequest, max_tokens=5) == (5, "max_tokens")
    assert limit(ChatCompletionRequest, max_completion_tokens=6) == (6, "max_completion_tokens")
    assert limit(ChatCompletionRequest, max_tokens=6, max_completion_tokens=6) == (6, "max_completion_tokens")


def test_alternatives_are_computed_for_whatever_part_of_the_answer_needs_most():
    assert check(ChatCompletionRequest, logprobs=True).options().num_logprobs == 0
    assert check(ChatCompletionRequest, prompt_logprobs=3).options().num_prompt_logprobs == 3
    assert check(CompletionRequest, logprobs=2).options().num_logprobs == 2
    assert check(CompletionRequest, logprobs=2).options().num_prompt_logprobs is None
    assert check(CompletionRequest, echo=True).options().num_prompt_logprobs is None
    assert check(CompletionRequest, logprobs=2, echo=True).options().num_prompt_logprobs == 2
    assert check(CompletionRequest, logprobs=0, echo=True).options().num_prompt_logprobs == 0
    assert check(CompletionRequest, logprobs=2, echo=True, prompt_logprobs=5).options().num_prompt_logprobs == 5
    assert check(CompletionRequest, logprobs=6, echo=True, prompt_logprobs=5).options().num_prompt_logprobs == 6
    assert check(CompletionRequest, logprobs=6, prompt_logprobs=5).options().num_prompt_logprobs == 5


def test_the_seed_is_the_first_choices_own_and_every_choice_has_another():
    body = check(CompletionRequest, seed=11).options()
    assert body.seed_for(0, default=5) == 11
    assert check(CompletionRequest).options().seed_for(0, default=5) == 5
    assert check(CompletionRequest, seed=0).options().seed_for(0, default=5) == 0
    # Seeds stay the same from one version to the next, so that answers can be repeated.
    assert body.seed_for(1, default=5) == 11 + 0x1E37_79B9_7F4A_7C15
    seeds = [check(CompletionRequest, seed=-1).options().seed_for(index, default=0) for index in range(8)]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(["a"], ("a",)), ([[1, 2]], ((1, 2),)), ([[1], "a", [2, 3]], ((1,), "a", (2, 3))), ([], ((),))],
)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_either(prompt, expected):
    assert check(CompletionRequest, prompt=prompt).prompt == expected
