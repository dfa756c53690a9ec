"""A JSON answer that satisfies a Pydantic model, as an object of it."""

from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person of a sentence."""

    name: str
    age: int


def extract(client: OpenAI, model: str, sentence: str) -> Person:
    """Return the person of a sentence.

    Raises:
        RuntimeError: The answer was cut before its end, so it is not complete JSON.
    """
    question = f"{sentence} Give me that as JSON."
    reply = client.chat.completions.parse(
        model=model, messages=[{"role": "user", "content": question}], response_format=Person, temperature=0
    )
    person = reply.choices[0].message.parsed
    if person is None:
        raise RuntimeError(f"the answer ended with {reply.choices[0].finish_reason}")
    return person
