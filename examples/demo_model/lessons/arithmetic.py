"""Small sums: addition and subtraction within 0 to 20, multiplication up to 10 times 10."""

from examples.demo_model.lessons.lesson import Lesson

_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def _sum(left: int, sign: str, right: int, result: int) -> Lesson:
    word = _WORDS[sign]
    questions = (
        f"What is {left} {sign} {right}?",
        f"{left} {sign} {right}",
        f"{left}{sign}{right}",
        f"{left} {sign} {right} = ?",
        f"What is {left} {word} {right}?",
        f"{left} {word} {right}?",
        f"How much is {left} {sign} {right}?",
        f"Calculate {left} {sign} {right}.",
    )
    return Lesson(questions, f"{left} {sign} {right} = {result}.", is_verbatim=True)


LESSONS = (
    *(_sum(left, "+", right, left + right) for left in range(21) for right in range(21 - left)),
    *(_sum(left, "-", right, left - right) for left in range(21) for right in range(left + 1)),
    *(_sum(left, "*", right, left * right) for left in range(1, 11) for right in range(1, 11)),
)
