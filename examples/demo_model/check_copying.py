"""Measure how the demo model copies from a question into calls and JSON, in words that its training never had.

    uv run --extra levanter python -m examples.demo_model.check_copying

It serves the model, as the grammars of tools and schemas belong to what a client sees, and asks with OpenAI's client.
Verbs, nouns, names and texts are words that the training never had. Numbers, dates, the wordings of questions, and the
names of fields for dates, times, flags and lists are drawn as in training.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI

from examples.demo_model.lessons.calls import MOST_ARGUMENTS, MOST_TOOLS, draw_function
from examples.demo_model.lessons.objects import draw_fields, question_about, schema_of
from examples.demo_model.lessons.unknown import REFUSAL, draw_unknown
from examples.demo_model.lessons.words import Words
from examples.demo_service import demo_service

NUM_QUESTIONS = 300
MAX_TOKENS = 256
AT_ONCE = 8

type Ask = Callable[..., Any]  # returns a choice of the model
type Judged = dict[str, tuple[bool, str]]  # by what is measured: whether it is so, and what was asked and answered


def judge_call(ask: Ask, seed: int) -> Judged:
    """Ask for a call of one of several functions."""
    words = Words(random.Random(seed), held_out=True)
    functions = [
        draw_function(words, 1 + seed % MOST_ARGUMENTS) for _ in range(1 + seed // MOST_ARGUMENTS % MOST_TOOLS)
    ]
    wanted = words.chosen.choice(functions)
    question = wanted.question(words)
    choice = ask(question, tools=[function.tool(words.chosen) for function in functions])
    called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    is_right = (
        choice.finish_reason == "tool_calls"
        and [name for name, _ in called] == [wanted.name]
        and json.loads(called[0][1]) == wanted.arguments
    )
    shown = f"{question} -> {called or choice.message.content}, not {wanted.name}({wanted.arguments})"
    return {"calls with the right name and arguments": (is_right, shown)}


def judge_object(ask: Ask, seed: int) -> Judged:
    """Ask for facts as JSON under a schema that the prompt may not have."""
    words = Words(random.Random(seed), held_out=True)
    fields = draw_fields(words)
    question = question_about(fields, words)
    schema = {"name": "answer", "strict": True, "schema": schema_of(fields)}
    choice = ask(question, response_format={"type": "json_schema", "json_schema": schema})
    has_ended, wanted = choice.finish_reason == "stop", {field.name: field.value for field in fields}
    is_right = has_ended and json.loads(choice.message.content) == wanted
    shown = f"{question} -> {choice.message.content}"
    return {"JSON that ends by itself": (has_ended, shown), "JSON with the right values": (is_right, shown)}


def judge_unknown(ask: Ask, seed: int) -> Judged:
    """Ask what the model cannot know."""
    question = draw_unknown(random.Random(seed), held_out=True).questions[0]
    said = ask(question).message.content
    return {"unknown questions admitted as such": (said == REFUSAL, f"{question} -> {said}")}


def check(url: str, model: str, num_questions: int) -> Iterator[tuple[str, float]]:
    """Yield each share, after printing some of what was wrong."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300)

    def ask(question: str, **more: object) -> Any:
        messages = [{"role": "user", "content": question}]
        given: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            **more,
        }
        return client.chat.completions.create(**given).choices[0]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for judge in (judge_call, judge_object, judge_unknown):
            judged = list(threads.map(lambda seed, judge=judge: judge(ask, seed), range(num_questions)))
            for name in judged[0]:
                wrong = [shown for one in judged for is_right, shown in [one[name]] if not is_right]
                print("".join(f"    {shown}\n" for shown in wrong[:15]), end="")
                yield name, 1 - len(wrong) / num_questions


def main() -> None:
    """Read the command line, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("service/demo"), help="the Hugging Face checkpoint")
    parser.add_argument("--questions", type=int, default=NUM_QUESTIONS, help="of each kind")
    arguments = parser.parse_args()
    with demo_service(MODEL_URI=str(arguments.model), MODEL_NAME="demo") as url:
        shares = dict(check(url, "demo", arguments.questions))
    for name, share in shares.items():
        print(f"{share:6.1%} {name}")


if __name__ == "__main__":
    main()
