"""`prompt_logprobs`: vLLM's field, and its shape of the answer."""

import pytest

from tests.api.scripted_engine import TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio

LOWER = [-0.25, -0.5, -0.75]


def places(prompt_ids, num_top):
    """Write down what the scripted engine says of a prompt: each token is the likeliest in its place."""
    return [
        None,
        *(
            {
                str(token_id + i): {
                    "logprob": LOWER[i],
                    "rank": i + 1,
                    "decoded_token": TOKENIZER.token_bytes_of(token_id + i).decode(errors="replace"),
                }
                for i in range(max(num_top, 1))
            }
            for token_id in prompt_ids[1:]
        ),
    ]


@pytest.mark.parametrize("num_top", [0, 1, 3])
async def test_a_chat_has_them_once_for_all_choices(num_top):
    service = Service()
    answer = (await service.chat(prompt_logprobs=num_top, n=2)).json()
    assert answer["prompt_logprobs"] == places(service.engine.last.request.prompt_ids, num_top)
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    assert (await service.chat()).json()["prompt_logprobs"] is None


async def test_a_completion_has_them_in_each_choice_of_its_own_prompt():
    prompts = [tokens("Once upon"), tokens("é🌍")]
    answer = (await Service().complete(prompts, n=2, prompt_logprobs=2)).json()
    expected = [places(prompt, 2) for prompt in prompts for _ in range(2)]
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == expected


async def test_a_prompt_of_one_token_has_none():
    answer = (await Service().complete([5], prompt_logprobs=1)).json()
    assert answer["choices"][0]["prompt_logprobs"] == [None]


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(1, 3), (3, 1), (0, 2)])
async def test_an_echo_and_they_have_each_as_many_as_was_asked(logprobs, prompt_logprobs):
    service = Service()
    prompt = tokens("Once upon")
    answer = (await service.complete(prompt, echo=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs)).json()
    choice = answer["choices"][0]
    assert service.engine.last.request.num_prompt_logprobs == max(logprobs, prompt_logprobs)
    assert choice["prompt_logprobs"] == places(prompt, prompt_logprobs)
    echoed = choice["logprobs"]["top_logprobs"][1 : len(prompt)]
    assert [len(top) for top in echoed] == [max(logprobs, 1)] * (len(prompt) - 1)


async def test_without_an_echo_the_logprobs_of_the_answer_ask_nothing_of_the_prompt():
    service = Service()
    await service.complete(logprobs=2)
    assert service.engine.last.request.num_prompt_logprobs is None
