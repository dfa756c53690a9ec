"""A bucket and the processes that share it, in a time of their own: one seed is one order of all that happens.

The event loop's time passes only while nothing can run. Each thread of the service is a greenlet that waits at every
operation of the bucket, which takes its effect some time later, fails, or takes effect and fails.
"""

import asyncio
import contextlib
import contextvars
import random
import time
from dataclasses import dataclass
from pathlib import Path

from greenlet import greenlet

from service.errors import CheckpointNotFound, ObjectChanged, TransferFailed
from service.storage import crc32c
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo
from service.storage.retry import TransferLimits

BEGIN_S = 1_800_000_000.0  # Unix time of the simulation's zero
PROCESS = contextvars.ContextVar("process", default=None)
REAL_TIME = time.time


class Killed(BaseException):
    """What happens to the threads of a process that was killed: they do nothing more."""


class Unreachable(Exception):
    """A client has no answer: the process was killed, or its store failed."""


@dataclass(frozen=True)
class Faults:
    """How likely an operation of the bucket fails, and how."""

    failed: float = 0.0  # without an effect
    lost: float = 0.0  # after its effect
    late: float = 0.0  # before its effect, which comes up to a minute later
    repeated: float = 0.0  # sent twice by Google's client, since the first answer was lost
    echoed: float = 0.0  # sent twice, and the first one comes up to a minute after the second
    slow: float = 0.0  # answered after up to 40 s


NO_FAULTS = Faults()


class World(asyncio.BaseEventLoop):
    """The event loop of all processes, and the bucket."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)
        self.faults = NO_FAULTS
        self.outage_until_s = 0.0
        self.objects = {}
        self._generation = 0
        self._now_s = 0.0
        self._selector = self

    def time(self):
        return self._now_s

    def select(self, timeout):
        assert timeout is not None, "everything waits for something that does not come"
        self._now_s += timeout
        return []

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        pass

    def run_in_executor(self, executor, func, *args):
        future, thread = self.create_future(), greenlet(lambda: func(*args))
        thread.gr_context = contextvars.copy_context()
        self.call_soon(self._resume, thread, future, thread.switch)
        return future

    def _resume(self, thread, future, go_on, *value):
        try:
            operation = go_on(*value)
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
            return
        if thread.dead:
            if not future.done():
                future.set_result(operation)
            return
        latency_s = self.random.expovariate(50)
        if self._happens(self.faults.slow):
            latency_s = self.random.uniform(5, 40)
        self.call_later(latency_s, self._perform, thread, future, *operation)

    def _perform(self, thread, future, process, is_write, effect):
        faults, failure = self.faults, TransferFailed("gs://bucket", "object", "HTTP 503")
        try:
            if process.is_killed:  # its request may be on its way
                if is_write and self._happens(0.5):
                    effect()
                raise Killed
            if self._now_s < self.outage_until_s or self._happens(faults.failed):
                raise failure
            if is_write and self._happens(faults.late):
                self.call_later(self.random.uniform(0, 60), effect)
                raise failure
            result = effect()
            if self._happens(faults.lost):
                raise failure
            if is_write and self._happens(faults.repeated):
                result = effect()
            if is_write and self._happens(faults.echoed):
                self.call_later(self.random.uniform(0, 60), effect)
        except BaseException as error:
            self._resume(thread, future, thread.throw, error)
        else:
            self._resume(thread, future, thread.switch, result)

    def _happens(self, probability):
        return probability > 0 and self.random.random() < probability

    def put(self, name, content, replaced):
        """Write an object if its generation is the one that is to be replaced, 0 for none."""
        present = self.objects.get(name)
        if replaced is not None and (0 if present is None else present[0].generation) != replaced:
            return False
        self._generation += 1
        checksum = crc32c.to_text(crc32c.extend(0, content))
        info = ObjectInfo(name, len(content), checksum, self._generation)
        self.objects[name] = (info, content, self._now_s)
        return True

    def unix_time(self):
        """Return the time by the clock of the process that asks."""
        process = PROCESS.get()
        return BEGIN_S + self._now_s + (0.0 if process is None else process.skew_s)


class SimulatedStore(BucketStore):
    """The store of one process: the service's own, over the simulated bucket."""

    def __init__(self, world, process, prefix):
        super().__init__(GcsLocation("bucket", prefix), emulator_host=None)
        self.__dict__.update(_source=_Objects(world, process, prefix), _uploader=_Objects(world, process, prefix))


class _Objects:
    """What Google's client and the ranged reader do below one prefix."""

    limits = TransferLimits()
    uri = "gs://bucket"

    def __init__(self, world, process, prefix):
        self._world, self._process, self._prefix = world, process, f"{prefix}/"

    def _do(self, effect, *, is_write=False):
        return greenlet.getcurrent().parent.switch((self._process, is_write, effect))

    def _at(self, name):
        return self._world.objects.get(self._prefix + name)

    def _named(self, info):
        return ObjectInfo(info.name.removeprefix(self._prefix), info.size_bytes, info.crc32c, info.generation)

    def read_live(self, name):
        found = self._do(lambda: self._at(name))
        return None if found is None else (self._named(found[0]), found[1])

    def find(self, name):
        found = self._do(lambda: self._at(name))
        return None if found is None else self._named(found[0])

    def age_s(self, name):
        found = self._do(lambda: self._at(name) and (*self._at(name), self._world.time()))
        return None if found is None else (self._named(found[0]), found[3] - found[2])

    def list(self, below):
        names = self._do(lambda: sorted(name for name in self._world.objects if name.startswith(self._prefix + below)))
        if not names:
            raise CheckpointNotFound(self.uri, "nothing")
        found = [self._world.objects.get(name) for name in names]
        return [self._named(entry[0]) for entry in found if entry is not None]

    @contextlib.contextmanager
    def open_range(self, info, start, num_bytes, budget):
        found = self._do(lambda: self._at(info.name))
        if found is None or found[0].generation != info.generation:
            raise ObjectChanged(self.uri, info.name, info.generation)
        yield _Range(memoryview(found[1])[start : start + num_bytes])

    def upload(self, name, content, *, replaces):
        if isinstance(content, Path):
            content = content.read_bytes()
        elif not isinstance(content, bytes):
            content.seek(0)
            content = content.read()
        replaced = 0 if replaces is None else replaces.generation
        return self._do(lambda: self._world.put(self._prefix + name, content, replaced), is_write=True)

    def copy(self, name, target):
        def effect():
            found = self._at(name)
            return found is not None and self._world.put(self._prefix + target, found[1], None)

        return self._do(effect, is_write=True)

    def delete(self, name):
        self._do(lambda: self._world.objects.pop(self._prefix + name, None) and None, is_write=True)


class _Range:
    def __init__(self, content):
        self._content = content

    def readinto(self, buffer):
        buffer[:] = self._content[: len(buffer)]
        self._content = self._content[len(buffer) :]


class Process:
    """What dies together; its clock may be wrong."""

    def __init__(self, world, skew_s=0.0):
        self.world, self.skew_s, self.is_killed = world, skew_s, False

    def start(self, coroutine):
        """Run a coroutine as a task of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return self.world.create_task(coroutine, context=context)

    async def answer(self, coroutine):
        """Return what a request to this process returns; raises Unreachable if it is killed first."""
        if self.is_killed:
            coroutine.close()
            raise Unreachable
        task = self.start(coroutine)
        await asyncio.wait([task])
        if task.cancelled() or isinstance(task.exception(), Killed):
            raise Unreachable
        return task.result()

    def kill(self):
        """End all its tasks; its threads do nothing more."""
        self.is_killed = True
        for task in asyncio.all_tasks(self.world):
            if task.get_context().get(PROCESS) is self:
                task.cancel()
