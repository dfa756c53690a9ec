"""`levserve serve` on a device whose step does not come back once several sequences run; settings as ever."""

import threading

from service.cli import main
from service.engine.runner import Runner

dispatch = Runner.dispatch


class HungStep:
    """A step that never comes back."""

    def read(self):
        threading.Event().wait()


def dispatch_and_hang(runner, plan, read_previous):
    return HungStep() if len(plan.seqs) > 1 else dispatch(runner, plan, read_previous)


if __name__ == "__main__":
    Runner.dispatch = dispatch_and_hang
    main()
