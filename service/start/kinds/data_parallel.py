"""The number of engines of a model: that of DATA_PARALLEL, or as many as hold enough tokens."""

import contextlib
import logging
from collections.abc import Callable
from typing import Literal, Protocol

from service.engine.shapes import EngineShapes
from service.errors import DoesNotFit, SettingsError

logger = logging.getLogger(__name__)

# Of the tokens that one engine on all devices holds, for several to be taken in its place. Each holds all weights, but
# no step of theirs waits for a sum over devices.
ENOUGH_TOKENS = 0.5


class PlannedEngines(Protocol):
    """What the choice depends on."""

    @property
    def shapes(self) -> EngineShapes:
        """The sizes of each engine."""
        ...

    @property
    def num_tokens(self) -> int:
        """The token positions that the pages of all engines hold."""
        ...


def choose_data_parallel[Spec: PlannedEngines](
    plan: Callable[[int], Spec], stated: int | Literal["auto"], num_devices: int
) -> Spec:
    """Return the plan of as many engines as DATA_PARALLEL says.

    Args:
        plan: plans a number of engines; raises DoesNotFit or SettingsError if they cannot be.
        stated: DATA_PARALLEL.
        num_devices: that engines may divide among them; 1 if there is nothing to choose.
    """
    if stated not in ("auto", 1) or num_devices == 1:
        return plan(1 if stated == "auto" else stated)
    single = plan(1)
    numbers = [number for number in range(num_devices, 1, -1) if num_devices % number == 0]
    several = next((found for number in numbers if (found := _enough(plan, number, single)) is not None), None)
    if several is None:
        return single
    if stated == "auto":
        return several
    facts = {"tokens": several.num_tokens, "tokens_of_one_engine": single.num_tokens}
    message = "the model fits on fewer devices than this host has: DATA_PARALLEL=auto would serve with several engines"
    logger.info(message, extra=facts)
    return single


def _enough[Spec: PlannedEngines](plan: Callable[[int], Spec], number: int, single: Spec) -> Spec | None:
    """Return the plan of several engines; None if they hold too few tokens, or too short texts."""
    with contextlib.suppress(DoesNotFit, SettingsError):
        several = plan(number)
        has_context = several.shapes.max_model_len >= single.shapes.max_model_len
        if has_context and several.num_tokens >= ENOUGH_TOKENS * single.num_tokens:
            return several
    return None
