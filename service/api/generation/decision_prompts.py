"""Questions about an input to prompts whose next token is the label of an option.

A question is asked at the end of the input, with a label of one token for each option, and the prompt ends where the
chat template writes the assistant's words. So nothing is generated: the model's probabilities of the labels there are
those of the options.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

from service.api.conversation import OFF, Conversation, Effort, TextPart, Turn
from service.api.generation.chat_prompt import conversation_of, rendered
from service.api.schema.decisions import DecisionsRequest, Question
from service.api.schema.token_ids import TokenIds
from service.errors import InvalidParameter
from service.text.prompt_model import PromptModel

REQUEST = "Reply with the label of one option and nothing else."
END_CHARS = 32  # before a label, by which it is known whether the label is a token of its own there
LABELS = (*ascii_uppercase, *ascii_lowercase, *digits, *map("".join, product(ascii_uppercase, repeat=2)))
NO_THINKING = Effort(OFF, "")  # which is stated by no field


class DecisionPrompt(NamedTuple):
    """A prompt, and what may come next."""

    ids: TokenIds
    label_ids: Sequence[int]  # the token of each option, in their order


class DecisionPrompts(NamedTuple):
    """The prompts of a request's questions."""

    prompts: Sequence[DecisionPrompt]
    ignored: Sequence[str]  # fields that were not read


class Label(NamedTuple):
    """A label of an option."""

    text: str
    token_id: int


def decision_prompts(
    body: DecisionsRequest, model: PromptModel, *, key: bytes, images: Sequence[str] | None = None
) -> DecisionPrompts:
    """Return the prompt of each question.

    Args:
        body: the questions.
        model: the model that answers.
        key: signs the client's thinking.
        images: what takes the place of each image of the input; None where images are not read.

    Raises:
        InvalidParameter: the tokenizer has too few labels of one token for a question's options.
        ContextLengthExceeded: a prompt leaves no room for a token.
        RequestError: as `rendered`.
    """
    conversation = replace(conversation_of(body, key), begins_answer=False, continues_last=True, effort=NO_THINKING)
    ignored = list(conversation.ignored)
    prompts: list[DecisionPrompt] = []
    end: str | None = None
    for number, question in enumerate(body.questions):
        at = f"questions[{number}]"
        if end is None:
            text, left_out = rendered(_asked(conversation, question, LABELS, at), model, images)
            ignored += [path for path in left_out if path != NO_THINKING.at]
            end = text.removesuffix(LABELS[0])[-END_CHARS:]
        labels = _labels(question, end, model, at)
        asked = _asked(conversation, question, [label.text for label in labels], at)
        text, _ = rendered(asked, model, images)
        ids = model.tokenizer.encode(text, add_special_tokens=False, param="input", max_model_len=model.max_model_len)
        if ids[-1] != labels[0].token_id:
            raise InvalidParameter(f"Invalid '{at}': the model's tokenizer joins its end with the answer.", param=at)
        prompts.append(DecisionPrompt(array("i", ids[:-1]), [label.token_id for label in labels]))
    return DecisionPrompts(prompts, ignored)


def _asked(conversation: Conversation, question: Question, labels: Iterable[str], at: str) -> Conversation:
    """Return a conversation that ends with a question, and with its first label as the answer."""
    options = question.options
    first, *_ = labels = list(labels)[: len(options)]
    lines = (f"{label}: {option}" for label, option in zip(labels, options, strict=True))
    asked = TextPart("\n".join([question.text, "", *lines, "", REQUEST]), f"{at}.instructions")
    turns = list(conversation.turns)
    if turns and turns[-1].role == "user":  # many templates refuse a user who speaks twice
        last = turns.pop()
        asked = replace(asked, text=f"\n\n{asked.text}") if last.parts else asked
        question_turn = replace(last, parts=(*(last.parts or ()), asked))
    else:
        question_turn = Turn(role="user", parts=(asked,), at=at)
    answer = Turn(role="assistant", parts=(TextPart(first, at),), at=at)
    return replace(conversation, turns=[*turns, question_turn, answer])


def _labels(question: Question, end: str, model: PromptModel, at: str) -> list[Label]:
    """Return a label for each option, which is one token behind the end of a prompt.

    Raises:
        InvalidParameter: there are too few.
    """
    count = len(question.options)
    for texts in (question.labels, LABELS[:count], LABELS):
        labels = list(_single_tokens(texts, end, model))
        if len(labels) >= count:
            return labels[:count]
    message = f"Invalid '{at}': it has {count} options; the model's tokenizer has labels for {len(labels)}."
    raise InvalidParameter(message, param=at)


def _single_tokens(texts: Sequence[str], end: str, model: PromptModel) -> Iterator[Label]:
    """Yield the labels that are one token each behind the same tokens."""
    encode = model.tokenizer.encode
    encoded = {text: encode(end + text, add_special_tokens=False) for text in texts}
    before = Counter(tuple(ids[:-1]) for ids in encoded.values())
    if not before:
        return
    [(common, _)] = before.most_common(1)
    seen = set[int]()
    for text, ids in encoded.items():
        if tuple(ids[:-1]) == common and ids[-1] not in seen:
            seen.add(ids[-1])
            yield Label(text, ids[-1])
