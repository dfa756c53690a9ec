"""The ids of files and batches, and the names of their objects.

An id begins with the time of its creation, so that the order of names is that of creation. Only ids of this form become
names.
"""

import re
import secrets
import time

from service.storage.ages import CLOCK_JUMP_S, expiry_time

FILE_PREFIX, BATCH_PREFIX = "file-", "batch_"
FILE_ID = re.compile(r"file-[0-9a-f]{32}")
BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
RECORD = "record.json"
MOMENT = re.compile(r"[-_/]([0-9a-f]{16})[0-9a-f]{16}")  # of an id: the Unix time in nanoseconds
FORGET_AFTER_S = 3600.0  # for what no record names, since its writer was killed


def new_id(prefix: str) -> str:
    """Return an id that no earlier one sorts after."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


def is_forgotten(name: str) -> bool:
    """Return whether the last id in a name is so old that no process is still about to write its record."""
    moments = MOMENT.findall(name)
    return not moments or int(moments[-1], 16) / 1e9 + FORGET_AFTER_S + CLOCK_JUMP_S < expiry_time()


def result_file_id(batch_id: str) -> str:
    """Return a new id of a batch's file of outputs or errors; it sorts by the time of the batch."""
    moment = batch_id.removeprefix(BATCH_PREFIX)[:16]
    return f"{FILE_PREFIX}{moment}{secrets.token_hex(8)}"
