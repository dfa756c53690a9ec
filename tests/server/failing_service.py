"""`levserve serve` on a device that fails some steps after a crowd has come together; settings as ever.

It is lost, and the process goes on for a moment after that, so that a test can ask it how it is; or it hangs.
"""

import os
import threading

from service.cli import main
from service.engine.runner import Runner
from service.server.app import Service

NUM_SEQUENCES = int(os.environ.pop("FAILING_NUM_SEQUENCES"))  # the crowd
STEPS = iter(range(int(os.environ.pop("FAILING_NUM_STEPS"))))  # that it gets
HANGS = bool(os.environ.pop("FAILING_HANGS", ""))
LINGERS_S = 2.0

dispatch, start = Runner.dispatch, Service.start


class HungStep:
    """A step that never comes back."""

    def read(self):
        threading.Event().wait()


def dispatch_until_it_fails(runner, plan, read_previous):
    if len(plan.seqs) == NUM_SEQUENCES and next(STEPS, None) is None:
        if HANGS:
            return HungStep()
        raise RuntimeError("device lost")
    return dispatch(runner, plan, read_previous)


def start_to_stop_later(service, on_error):
    start(service, lambda: threading.Timer(LINGERS_S, on_error).start())


if __name__ == "__main__":
    Runner.dispatch = dispatch_until_it_fails
    if not HANGS:
        Service.start = start_to_stop_later
    main()
