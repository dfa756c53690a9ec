"""Small schedulers and requests, and steps that are read at once."""

from service.engine.request import Request
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.scheduler import Scheduler


def make_scheduler(
    *, max_tokens: int = 8, row_tokens: int | None = None, step_cost_tokens: int = 512, **sizes
) -> Scheduler:
    sizes = {"num_slots": 2, "num_pages": 16, "page_size": 4} | sizes
    row_tokens = row_tokens or sizes["page_size"]
    return Scheduler(**sizes, chunking=Chunking(row_tokens, max_tokens // row_tokens, step_cost_tokens))


def make_request(name: str, prompt_len: int = 4, max_tokens: int = 4, **options) -> Request:
    # Names with another first letter have other tokens, so that none finds another's prefix unless it means to.
    first = 1000 * (1 + ord(name[0]))
    return Request(name, tuple(range(first, first + prompt_len)), max_tokens, **options)


def step(scheduler: Scheduler, token_id: int = 7):
    plan = scheduler.plan()
    return plan, scheduler.commit(plan, [token_id] * len(plan.seqs))


def names(plan) -> str:
    """Return the first letters of the requests in a plan."""
    return "".join(planned.sequence.request.id[0] for planned in plan.seqs)


def served(scheduler: Scheduler, num_steps: int) -> list[str]:
    """Run steps and return who was in each."""
    return [names(step(scheduler)[0]) for _ in range(num_steps)]
