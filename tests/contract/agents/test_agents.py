"""Coding agents of other projects, unmodified, with a scripted model: a tool that runs, and two more turns."""

from itertools import pairwise

import pytest

from tests.contract.agents import programs
from tests.contract.agents.programs import Workplace
from tests.contract.scripted_model import MODEL
from tests.contract.scripts import GREETING, KEY

# Name of the script that answers, and what else tells the agent from another one.
AGENTS = {
    "aider": programs.aider,
    "claude_code": programs.claude_code,
    "cline": programs.cline,
    "codex": programs.codex,
    "mini_swe_agent": programs.mini_swe_agent,
    "opencode": programs.opencode,
    "opencode reasoning": programs.opencode_reasoning,
    "pi": programs.pi,
    "pi responses": programs.pi_responses,
    "qwen_code": programs.qwen_code,
}
# The share of a turn's prompt that the next turn finds again.
PREFIX_SHARE = 0.98
PREFIX_AGENTS = ("claude_code", "codex")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=AGENTS)
def conversation(request, scripted_service, tmp_path_factory):
    """The workplace after three prompts, and the requests that the service logged."""
    place = Workplace(tmp_path_factory.mktemp("agent"), scripted_service.url, KEY)
    num_logged = len(scripted_service.log)
    script = request.param.partition(" ")[0]
    try:
        prompts = [f"Write hello.txt (script {script})", "Go on (script count)", "And on (script count)"]
        AGENTS[request.param](place, prompts)
    finally:
        place.end()
    logged = [line for line in scripted_service.log[num_logged:] if line["message"] == "request"]
    return request.param, place, logged


def test_a_tool_runs_and_two_more_turns_are_answered(conversation):
    agent, place, _ = conversation
    printed = "\n".join(place.printed)
    assert (place.repository / "hello.txt").exists(), printed
    assert (place.repository / "hello.txt").read_text() == f"{GREETING}\n", printed
    last = ("Two", "Three") if agent == "mini_swe_agent" else ("This is turn 2.", "This is turn 3.")
    assert [text for text in last if text not in printed] == [], printed


def test_no_request_of_an_agent_is_refused(conversation):
    _, place, logged = conversation
    refused = [(line["method"], line["route"], line["status"]) for line in logged if line["status"] >= 400]
    assert logged
    assert refused == [], "\n".join(place.printed)


def test_the_prefix_of_a_turn_is_found_again_by_the_next(conversation):
    agent, place, logged = conversation
    if agent not in PREFIX_AGENTS:
        pytest.skip("a bound for the agents with the longest prompts")
    turns = [line for line in logged if line.get("model") == MODEL and line.get("prompt_tokens")]
    found = [after["cached_tokens"] / before["prompt_tokens"] for before, after in pairwise(turns)]
    assert len(found) >= 3, "\n".join(place.printed)
    assert min(found) >= PREFIX_SHARE, found
