"""The corpus: conversations sampled from the lessons, reproducible by seed.

An epoch asks each lesson in one of its wordings, and joins some of them into longer conversations. Only the wording
varies between epochs; the answers do not.
"""

import random

from examples.demo_model.lessons import about, arithmetic, facts, settings, skills, small_talk, unknown
from examples.demo_model.lessons.dialogues import DIALOGUES
from examples.demo_model.lessons.lesson import Conversation, Lesson, assistant, system, user

LESSONS: dict[str, tuple[Lesson, ...]] = {
    "about": about.LESSONS,
    "settings": settings.LESSONS,
    "small talk": small_talk.LESSONS,
    "facts": facts.LESSONS,
    "arithmetic": arithmetic.LESSONS,
    "skills": skills.LESSONS,
    "unknown": unknown.LESSONS,
}

TIMES_PER_EPOCH = {  # frequent questions are trained more often
    "about": 1.5,
    "settings": 1.5,
    "small talk": 4.0,
    "facts": 1.0,
    "arithmetic": 1.0,
    "skills": 1.5,
    "unknown": 1.0,
}

DOCUMENTS = skills.DOCUMENTS

UNKNOWN_PER_EPOCH = 200
MAX_TURNS = 5
NEUTRAL_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful and friendly assistant.",
    "You are Levserve's demo model.",
    "Be brief.",
    "Answer the user's questions.",
)


def sample_epoch(rng: random.Random) -> list[Conversation]:
    """Return the conversations of one epoch, in random order."""
    lessons = [lesson for name, group in LESSONS.items() for lesson in _take(group, TIMES_PER_EPOCH[name], rng)]
    lessons += [unknown.draw_unknown(rng) for _ in range(UNKNOWN_PER_EPOCH)]
    rng.shuffle(lessons)
    conversations = join_lessons(lessons, rng)
    for dialogue, count in DIALOGUES.items():
        conversations += [dialogue(rng) for _ in range(count)]
    rng.shuffle(conversations)
    return conversations


def join_lessons(lessons: list[Lesson], rng: random.Random) -> list[Conversation]:
    """Return conversations of one or several lessons, so that the model learns to change the subject."""
    conversations = []
    remaining = list(lessons)
    while remaining:
        num_turns = rng.choice((1, 1, 1, 2, 3, MAX_TURNS))
        joined = [remaining.pop() for _ in range(min(num_turns, len(remaining)))]
        free = [lesson for lesson in joined if lesson.system is None]
        conversations += [_converse([lesson], lesson.system, rng) for lesson in joined if lesson.system is not None]
        if free:
            prompt = rng.choice(NEUTRAL_SYSTEM_PROMPTS) if rng.random() < 0.15 else None
            conversations.append(_converse(free, prompt, rng))
    return conversations


def canonical(lesson: Lesson) -> Conversation:
    """Return a conversation of one lesson in its first wording."""
    prompt = [] if lesson.system is None else [system(lesson.system)]
    return Conversation((*prompt, user(lesson.questions[0]), assistant(lesson.answer)))


def reword(question: str, rng: random.Random) -> str:
    """Vary a question as people do: its case, its final punctuation, a polite word."""
    wordings = (
        question,
        question,
        question.rstrip("?.!"),
        question[0].lower() + question[1:],
        question.lower().rstrip("?.!"),
        question.lower(),
        question.rstrip("?.!") + ", please" + (question[-1] if question[-1] in "?.!" else ""),
        "Please, " + question[0].lower() + question[1:],
        "Hi! " + question,
        "Hey, " + question[0].lower() + question[1:],
    )
    return rng.choice(wordings)


def _take(lessons: tuple[Lesson, ...], times: float, rng: random.Random) -> list[Lesson]:
    """Return each lesson `times` times; a fraction selects some of them."""
    whole, fraction = divmod(times, 1)
    return [*lessons * int(whole), *rng.sample(lessons, round(fraction * len(lessons)))]


def _converse(lessons: list[Lesson], prompt: str | None, rng: random.Random) -> Conversation:
    messages = [] if prompt is None else [system(prompt)]
    for lesson in lessons:
        question = rng.choice(lesson.questions)
        messages += [user(question if lesson.is_verbatim else reword(question, rng)), assistant(lesson.answer)]
    return Conversation(tuple(messages))
