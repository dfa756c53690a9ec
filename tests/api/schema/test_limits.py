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


def of_both(*rows):
    return [(kind, *row) for kind in BODIES for row in rows]


def check(kind, **fields):
    return parse(kind, json.dumps(BODIES[kind] | fields).encode())


def refused_param(kind, **fields):
    with pytest.raises(InvalidParameter) as caught:
        check(kind, **fields)
    return caught.value.param


@pytest.mark.parametrize(
    ("kind", "field", "lowest", "highest", "step"),
    [
        *of_both(
            ("temperature", 0, 2, 0.01),
            ("top_p", 1e-6, 1, 0.01),
            ("top_k", -1, INT32_MAX, 1),
            ("min_p", 0, 1, 0.01),
            ("repetition_penalty", 0.01, 10, 0.005),
            ("presence_penalty", -2, 2, 0.01),
            ("frequency_penalty", -2, 2, 0.01),
            ("seed", -(2**63), INT64_MAX, 1),
            ("n", 1, 8, 1),
            ("min_tokens", 0, INT32_MAX, 1),
            ("max_tokens", 1, INT64_MAX, 1),
            ("priority", -1_000_000, 1_000_000, 1),
            ("prompt_logprobs", 0, 20, 1),
        ),
        (ChatCompletionRequest, "max_completion_tokens", 1, INT64_MAX, 1),
        (CompletionRequest, "logprobs", 0, 20, 1),
    ],
)
def test_a_number_is_taken_up_to_its_limits(kind, field, lowest, highest, step):
    assert getattr(check(kind, **{field: lowest}), field) == lowest
    assert getattr(check(kind, **{field: highest}), field) == highest
    assert refused_param(kind, **{field: lowest - step}) == field
    assert refused_param(kind, **{field: highest + step}) == field


def test_no_probability_mass_is_no_sampling():
    assert refused_param(CompletionRequest, top_p=0) == "top_p"


def test_alternatives_are_taken_up_to_twenty():
    for count in (0, 20):
        assert check(ChatCompletionRequest, logprobs=True, top_logprobs=count).num_logprobs == count
    for count in (-1, 21):
        assert refused_param(ChatCompletionRequest, logprobs=True, top_logprobs=count) == "top_logprobs"


@pytest.mark.parametrize("best_of", [1, 8])
def test_best_of_is_taken_if_it_is_the_number_of_choices(best_of):
    assert check(CompletionRequest, n=best_of, best_of=best_of).best_of == best_of
    assert refused_param(CompletionRequest, n=best_of, best_of=9 - best_of) == "best_of"
    assert refused_param(CompletionRequest, n=best_of, best_of=0) == "best_of"


@pytest.mark.parametrize("value", [0, 9])
def test_best_of_has_the_range_of_the_number_of_choices(value):
    with pytest.raises(InvalidParameter, match=r"(greater|less) than or equal to [18]") as caught:
        check(CompletionRequest, best_of=value)
    assert caught.value.param == "best_of"


@pytest.mark.parametrize(
    ("kind", "field", "longest", "param"),
    [
        *of_both(
            ("stop", ["a"] * 16, "stop"),
            ("stop_token_ids", [1] * 32, "stop_token_ids"),
        ),
        (CompletionRequest, "prompt", ["a"] * 64, "prompt"),
        (CompletionRequest, "prompt", [[1]] * 64, "prompt"),
    ],
)
def test_a_list_is_taken_up_to_its_length(kind, field, longest, param):
    assert len(getattr(check(kind, **{field: longest}), field)) == len(longest)
    assert refused_param(kind, **{field: [*longest, longest[0]]}) == param


@pytest.mark.parametrize(
    ("kind", "field", "num_chars", "param"),
    of_both(("model", 512, "model"), ("user", 512, "user"), ("stop", 1024, "stop[0]")),
)
def test_a_text_is_taken_up_to_its_length(kind, field, num_chars, param):
    check(kind, **{field: "a" * num_chars})
    assert refused_param(kind, **{field: "a" * (num_chars + 1)}) == param


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
def test_a_token_id_is_a_number_of_31_bits(kind, field):
    assert getattr(check(kind, **{field: [0, INT32_MAX]}), field) == [0, INT32_MAX]
    for token_id in (-1, INT32_MAX + 1):
        assert refused_param(kind, **{field: [0, token_id]}) == f"{field}[1]"


def test_a_bias_is_taken_up_to_its_limits():
    for bias in (-100, 100, 0.5):
        assert check(CompletionRequest, logit_bias={"7": bias}).logit_bias == {7: float(bias)}
    for bias in (-100.1, 100.1):
        assert refused_param(CompletionRequest, logit_bias={"7": bias}) == "logit_bias.7"
    assert check(CompletionRequest, logit_bias={"0": 1, str(10**9): 2}).logit_bias == {0: 1.0, 10**9: 2.0}
    assert refused_param(CompletionRequest, logit_bias={str(10**10): 1}) == "logit_bias"


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
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a"], ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        ([[1], "a", [2, 3]], ((1,), "a", (2, 3))),
        ([], ((),)),
    ],
)
def test_a_prompt_is_a_text_or_token_ids_or_a_list_of_either(prompt, expected):
    assert check(CompletionRequest, prompt=prompt).prompt == expected


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


def test_what_a_request_leaves_out_has_the_defaults_of_the_interface():
    chat, text = check(ChatCompletionRequest), check(CompletionRequest)
    for body in (chat, text):
        assert [getattr(body, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")] == [
            None
        ] * 5
        assert (body.presence_penalty, body.frequency_penalty, body.logit_bias, body.seed) == (0.0, 0.0, {}, None)
        assert (body.n, body.min_tokens, body.max_tokens, body.priority) == (1, 0, None, 0)
        assert (body.stop, body.stop_token_ids, body.allowed_token_ids) == ([], [], None)
        assert [body.ignore_eos, body.stream, body.return_token_ids, body.includes_usage] == [False] * 4
        assert (body.stream_options, body.user, body.prompt_logprobs) == (None, None, None)
        assert (body.num_logprobs, body.num_prompt_logprobs) == (None, None)
    assert (text.echo, text.best_of, text.logprobs) == (False, None, None)
    assert (chat.max_completion_tokens, chat.logprobs, chat.top_logprobs) == (None, False, 0)


def test_a_parsed_request_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        check(CompletionRequest).n = 2


def test_a_limit_is_told_with_the_field_that_states_it():
    assert check(CompletionRequest, max_tokens=5).requested_max_tokens == (5, "max_tokens")
    assert check(CompletionRequest).requested_max_tokens == (None, "max_tokens")
    assert check(ChatCompletionRequest, max_tokens=5).requested_max_tokens == (5, "max_tokens")
    newer = check(ChatCompletionRequest, max_completion_tokens=6)
    assert newer.requested_max_tokens == (6, "max_completion_tokens")
    both = check(ChatCompletionRequest, max_tokens=6, max_completion_tokens=6)
    assert both.requested_max_tokens == (6, "max_completion_tokens")


def test_alternatives_are_computed_for_whatever_part_of_the_answer_needs_most():
    assert check(ChatCompletionRequest, logprobs=True).num_logprobs == 0
    assert check(ChatCompletionRequest, prompt_logprobs=3).num_prompt_logprobs == 3
    assert check(CompletionRequest, logprobs=2).num_logprobs == 2
    assert check(CompletionRequest, logprobs=2).num_prompt_logprobs is None
    assert check(CompletionRequest, echo=True).num_prompt_logprobs is None
    assert check(CompletionRequest, logprobs=2, echo=True).num_prompt_logprobs == 2
    assert check(CompletionRequest, logprobs=0, echo=True).num_prompt_logprobs == 0
    assert check(CompletionRequest, logprobs=2, echo=True, prompt_logprobs=5).num_prompt_logprobs == 5
    assert check(CompletionRequest, logprobs=6, echo=True, prompt_logprobs=5).num_prompt_logprobs == 6
    assert check(CompletionRequest, logprobs=6, prompt_logprobs=5).num_prompt_logprobs == 5


def test_the_seed_is_the_first_choices_own_and_every_choice_has_another():
    body = check(CompletionRequest, seed=11)
    assert body.seed_for(0, default=5) == 11
    assert check(CompletionRequest).seed_for(0, default=5) == 5
    assert check(CompletionRequest, seed=0).seed_for(0, default=5) == 0
    # Seeds stay the same from one version to the next, so that answers can be repeated.
    assert body.seed_for(1, default=5) == 11 + 0x1E37_79B9_7F4A_7C15
    seeds = [check(CompletionRequest, seed=-1).seed_for(index, default=0) for index in range(8)]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
