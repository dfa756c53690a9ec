"""Decisions by the official client, with the demo model: probabilities are those of labels at an answer's beginning."""

import math

import openai
import pytest

QUESTIONS = [
    {"type": "predicate", "name": "sad", "instructions": "The story is sad."},
    {
        "type": "choice",
        "name": "hero",
        "instructions": [{"type": "input_text", "text": "Who is "}, {"type": "input_text", "text": "it about?"}],
        "choices": [
            {"value": "a cat", "description": "It purrs."},
            {"value": "a dog"},
            {"value": True},
            {"value": "true"},
        ],
    },
    {
        "type": "score",
        "instructions": "How long is it?",
        "levels": [{"label": "short"}, {"label": "middling", "description": "a page"}, {"label": "long"}],
    },
]
STORY = "Once upon a time, there was a little cat. The cat lost its ball."


@pytest.fixture(scope="module")
def client(demo_service):
    with openai.OpenAI(api_key="none", base_url=f"{demo_service.url}/v1", max_retries=0) as client:
        yield client


def decide(client, questions=QUESTIONS, told=STORY, **more):
    model = client.models.list().data[0].id
    return client.decisions.create(model=model, input=told, questions=questions, **more)


def test_questions_of_every_kind_are_answered_in_order(client):
    decision = decide(client)
    predicate, choice, score = decision.answers
    assert [(answer.type, answer.name) for answer in decision.answers] == [
        ("predicate", "sad"), ("choice", "hero"), ("score", None),
    ]  # fmt: skip
    assert 0 < predicate.probability < 1
    assert [entry.value for entry in choice.probabilities] == ["a cat", "a dog", True, "true"]
    assert choice.choice == max(choice.probabilities, key=lambda entry: entry.probability).value
    assert [(entry.label, entry.value) for entry in score.probabilities] == [("short", 0), ("middling", 1), ("long", 2)]
    for answer in (choice, score):
        assert math.isclose(sum(entry.probability for entry in answer.probabilities), 1, abs_tol=1e-6)
        assert 0 <= answer.confidence <= 1
    expected = sum(entry.value * entry.probability for entry in score.probabilities)
    assert math.isclose(score.score, expected, abs_tol=1e-9)
    assert decision.usage.output_tokens == 3
    assert decision.usage.total_tokens == decision.usage.input_tokens + 3


def test_an_answer_does_not_depend_on_the_other_questions(client):
    together = decide(client).answers
    for question, answer in zip(QUESTIONS, together, strict=True):
        [alone] = decide(client, [question]).answers
        assert alone == answer


def test_probabilities_are_those_of_the_labels_as_the_first_word_of_a_chats_answer(client, demo_service):
    choices = [{"value": f"number {i}"} for i in range(24)]  # more than one step returns
    question = {"type": "choice", "instructions": "Which number?", "choices": choices}
    [answer] = decide(client, [question]).answers
    model = client.models.list().data[0].id
    labels = "ABCDEFGHIJKLMNOPQRSTUVWX"
    options = "".join(f"{label}: number {i}\n" for i, label in enumerate(labels))
    asked = f"{STORY}\n\nWhich number?\n\n{options}\nReply with the label of one option and nothing else."
    chat = {"model": model, "messages": [{"role": "user", "content": asked}]}
    prompt = client.post("/chat/completions/render", body=chat, cast_to=object)["token_ids"]
    logprobs = []
    for label in labels:
        tokens = client.post(f"{demo_service.url}/tokenize", body={"prompt": label}, cast_to=object)["tokens"]
        scored = client.completions.create(
            model=model, prompt=[*prompt, tokens[-1]], echo=True, logprobs=0, max_tokens=0
        )
        logprobs.append(scored.choices[0].logprobs.token_logprobs[-1])
    weights = [math.exp(logprob - max(logprobs)) for logprob in logprobs]
    expected = [weight / sum(weights) for weight in weights]
    assert [entry.probability for entry in answer.probabilities] == pytest.approx(expected, abs=1e-5)


def test_the_input_is_computed_once(client):
    long = STORY * 8
    first = decide(client, QUESTIONS, long).usage
    again = decide(client, QUESTIONS, long).usage
    assert first.input_tokens_details.cached_tokens > first.input_tokens // 3
    assert again.input_tokens_details.cached_tokens > first.input_tokens_details.cached_tokens
