"""The shard of a batch that a process answers: from `--shard`, or from the index of a Cloud Run or Kubernetes task."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from service.errors import SettingsError

# Source: https://cloud.google.com/run/docs/container-contract#jobs-env-vars
TASK_INDEX, TASK_COUNT = "CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"
# Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
FLAG, COUNT_FLAG = "--shard", "--shards"


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several processes that answer a batch. Another count in a later run changes nothing that is answered."""

    index: int = 0  # from 0
    count: int = 1

    @property
    def name(self) -> str:
        return f"shard {self.index} of {self.count}"


def read_shard(flag: str | None, count: str | None, environment: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard of this process.

    Args:
        flag: of `--shard`: `I/N`.
        count: of `--shards`, for a platform that says only the index.
        environment: of this process.

    Raises:
        SettingsError: the index or the count is missing or malformed, or there are not so many shards.
    """
    if flag is not None:
        if (match := re.fullmatch(r"(\d+)/(\d+)", flag)) is None:
            raise SettingsError(FLAG, f"is {flag!r}. Write the index from 0 and the count, as in --shard 0/4.")
        return _checked(FLAG, match[1], match[2])
    if environment.get(TASK_INDEX):
        return _checked(TASK_INDEX, environment[TASK_INDEX], count or environment.get(TASK_COUNT, ""))
    if index := environment.get(COMPLETION_INDEX):
        if count is None:
            reason = (
                f"says the index of this pod, but Kubernetes tells no count. Add {COUNT_FLAG} with the completions."
            )
            raise SettingsError(COMPLETION_INDEX, reason)
        return _checked(COMPLETION_INDEX, index, count)
    if count is not None and count != "1":
        raise SettingsError(COUNT_FLAG, f"is {count}, and nothing says which of them this is. Write --shard 0/{count}.")
    return Shard()


def _checked(source: str, index: str, count: str) -> Shard:
    if not index.isdecimal() or not count.isdecimal() or int(count) < 1:
        raise SettingsError(source, f"says shard {index!r} of {count!r}; both must be numbers, the count at least 1.")
    if int(index) >= int(count):
        last = int(count) - 1
        raise SettingsError(source, f"says shard {index} of {count}; the index is from 0 to {last}.")
    return Shard(int(index), int(count))
