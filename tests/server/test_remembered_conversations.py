"""A conversation outlives its instance: what one process on a bucket has answered, the others remember."""

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest
from openai import APIConnectionError, APIError, NotFoundError, OpenAI

from tests.process import ServiceProcess
from tests.served import SMALL

MODEL = "levserve-demo"
NUM_TURNS = 4
MAX_OUTPUT_TOKENS = 8
NUM_CLIENTS = 6
LIMIT_S = 600
# Of answers without a connection, or while an instance drains or dies.
LOST = (APIConnectionError, APIError, httpx.HTTPError)


@dataclass
class Turn:
    """A turn that was answered."""

    asked: str
    id: str
    text: str


@dataclass
class Fleet:
    """Some instances, of which one that is killed is replaced."""

    settings: dict
    end_s: float
    instances: list[ServiceProcess] = field(default_factory=list)
    num_kills: int = 0

    def start(self, number):
        self.instances = [ServiceProcess(**self.settings) for _ in range(number)]
        for instance in self.instances:
            instance.wait_until_ready()

    def check_time(self, error):
        """Fail with an error that may pass, once there is no time left to try again."""
        if time.monotonic() > self.end_s:
            raise error

    def is_ready(self, instance):
        return instance.process.poll() is None and any(line["message"] == "ready" for line in list(instance.log))

    def any(self, rng, *, but=None):
        """A ready instance, another one than the last if there is one; waits for it."""
        while time.monotonic() < self.end_s:
            ready = [instance for instance in self.instances if self.is_ready(instance)]
            if ready:
                return rng.choice([instance for instance in ready if instance is not but] or ready)
            time.sleep(0.05)
        raise AssertionError("no instance is ready")

    def kill_one(self, rng):
        """Kill a ready instance if another one is ready too, and start one in its place."""
        ready = [index for index, instance in enumerate(self.instances) if self.is_ready(instance)]
        if len(ready) > 1:
            index = rng.choice(ready)
            self.instances[index].kill()
            self.instances[index] = ServiceProcess(**self.settings)
            self.num_kills += 1

    def stop(self):
        for instance in self.instances:
            instance.kill()


def client_of(instance):
    return OpenAI(base_url=f"{instance.url}/v1", api_key="none", max_retries=0, timeout=60)


def asked_of(instance, *, stream, **fields):
    """Ask one instance; return the id and the text of a response that it said was complete."""
    with client_of(instance) as client:
        fields |= {"model": MODEL, "max_output_tokens": MAX_OUTPUT_TOKENS, "temperature": 1.0}
        if not stream:
            response = client.responses.create(**fields)
        else:
            with client.responses.create(**fields, stream=True) as events:
                *_, last = events
            response = last.response
        assert response.to_dict()["store"] is True
        return response.id, response.output_text


def converse(fleet, number):
    """Hold one conversation, each turn with another instance; return the turns that were answered."""
    rng, turns, last = random.Random(number), [], None
    for index in range(NUM_TURNS):
        asked = f"{number}.{index}?"
        previous = {"previous_response_id": turns[-1].id} if turns else {}
        while True:
            last = fleet.any(rng, but=last)
            try:
                turns.append(Turn(asked, *asked_of(last, stream=rng.random() < 0.5, input=asked, **previous)))
                break
            except LOST as error:
                if getattr(error, "code", None) == "previous_response_not_found":
                    raise
                fleet.check_time(error)
    return turns


def check(fleet, turns):
    """Every answered turn is there, whole, whichever instance is asked."""
    rng = random.Random(turns[0].id)
    expected = []
    for turn in turns:
        expected += [turn.asked]
        while True:
            try:
                with client_of(fleet.any(rng)) as client:
                    assert client.responses.retrieve(turn.id).output_text == turn.text
                    items = client.responses.input_items.list(turn.id, order="asc", limit=100).data
                break
            except APIConnectionError as error:
                fleet.check_time(error)
        assert [item.content[0].text for item in items] == expected
        expected += [turn.text]


def remember(fleet, *, num_conversations, kills_s):
    """Hold conversations while instances are killed, in so many seconds each; then check all of them."""
    has_ended, rng = threading.Event(), random.Random(0)

    def kill():
        while not has_ended.wait(rng.uniform(*kills_s)):
            fleet.kill_one(rng)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            conversations = list(clients.map(lambda number: converse(fleet, number), range(num_conversations)))
            list(clients.map(lambda turns: check(fleet, turns), conversations))
    finally:
        has_ended.set()
        killer.join()
    assert sum(map(len, conversations)) == num_conversations * NUM_TURNS


@pytest.fixture
def fleet(one_sequence, gcs_bucket):
    settings = SMALL | {
        "local_model_cache": one_sequence.cache,
        "state_uri": gcs_bucket.uri("state"),
        "storage_emulator_host": gcs_bucket.server.direct_url,
    }
    fleet = Fleet(settings, time.monotonic() + LIMIT_S)
    try:
        yield fleet
    finally:
        fleet.stop()


def test_a_conversation_goes_on_in_another_process_after_a_kill(fleet):
    fleet.start(2)
    first, second = fleet.instances
    turn = Turn("Who are you?", *asked_of(first, stream=False, input="Who are you?"))
    streamed = asked_of(second, stream=True, input="And?", previous_response_id=turn.id)
    first.kill()
    asked_of(second, stream=False, input="Go on.", previous_response_id=turn.id)
    check(fleet, [turn, Turn("And?", *streamed)])


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_no_answered_turn_is_forgotten_whatever_is_killed(fleet):
    fleet.start(3)
    remember(fleet, num_conversations=300, kills_s=(2.0, 5.0))
    assert fleet.num_kills > 3


@pytest.mark.slow
def test_a_response_in_the_background_has_ended_when_its_instance_has(fleet):
    fleet.settings |= {"drain_seconds": 0}
    fleet.start(1)
    [first] = fleet.instances
    asked = {"model": MODEL, "input": "Who are you?", "background": True}
    with client_of(first) as client:
        ids = [client.responses.create(**asked).id for _ in range(8)]
    assert first.stop(signal.SIGTERM) == 0
    fleet.start(1)
    [second] = fleet.instances
    with client_of(second) as client:
        ended = [ended_of(client, response_id) for response_id in ids]
    assert {response.status for response in ended} <= {"completed", "failed"}
    assert ended[-1].status == "failed", "one slot does not answer eight at once"
    assert ended[-1].error is not None


@pytest.mark.slow
def test_a_response_whose_process_was_killed_has_failed_for_the_others(fleet):
    fleet.start(2)
    first, second = fleet.instances
    with client_of(first) as client:
        made = [client.responses.create(model=MODEL, input="Who?", background=True).id for _ in range(8)]
    first.kill()
    with client_of(second) as client:
        ended = ended_of(client, made[-1])
        assert (ended.status, ended.error.code) == ("failed", "server_error")
        assert client.responses.cancel(made[-1]).status == "failed"
        assert asked_of(second, stream=False, input="And?", previous_response_id=made[-1])
        client.responses.delete(made[-1])
        assert status_of(client.responses, made[-1]) is None


def ended_of(client, response_id):
    """A response once it has ended: if its process did not write how, then as its claim ends, by the bucket's clock."""
    give_up_s = time.monotonic() + 200
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < give_up_s
        time.sleep(1)
    return response


def status_of(client, response_id):
    """The status of a response; None if there is none."""
    try:
        return client.retrieve(response_id).status
    except NotFoundError:
        return None
