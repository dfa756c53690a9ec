"""Coding agents, each as its users run it without a terminal: its files of settings, its commands, its environment.

An agent gets three prompts in one conversation. Where it keeps its conversations, each prompt is a run of its own.
"""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from tests.contract.installation import NODE, node_folder_of, python_of
from tests.contract.scripted_model import CONTEXT, MODEL

HERE = Path(__file__).parent
RUN_TIMEOUT_S = 240
NOBODY = "http://127.0.0.1:9"  # as the proxy to other machines: an agent reaches the service alone
LEFT_ALONE = ("PATH", "LANG", "PYTHONPATH", "LOOPBACK_REFUSALS")


@dataclass
class Workplace:
    """An empty repository, a home without settings, and the service that an agent is to use."""

    folder: Path
    url: str  # of the service
    key: str
    printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the folders."""
        self.home.mkdir()
        self.repository.mkdir()
        for arguments in (["init", "--quiet"], ["config", "user.name", "A"], ["config", "user.email", "a@example.com"]):
            subprocess.run(["git", *arguments], cwd=self.repository, check=True)

    @property
    def home(self) -> Path:
        """The folder of the agent's own files."""
        return self.folder / "home"

    @property
    def repository(self) -> Path:
        """The folder in which the agent works."""
        return self.folder / "repository"

    def write(self, path: str, content: Any) -> None:
        """Write a file of settings in the home; anything but a text as JSON."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def run(self, *command: str | Path, answers: str = "", **environment: str) -> None:
        """Run a command in the repository and keep what it prints.

        Args:
            command: the program and its arguments.
            answers: what the program reads from its input.
            environment: variables besides those of every agent.
        """
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.repository,
            env=self.environment | environment,
            input=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        self.printed.append(f"$ {' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of every agent: none of the machine's settings, and no way to other machines."""
        kept = {name: os.environ[name] for name in LEFT_ALONE if name in os.environ}
        kept["PATH"] = os.pathsep.join([str(NODE.parent), kept.get("PATH", os.defpath)])
        proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), NOBODY)
        proxies |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        return kept | proxies | {"HOME": str(self.home), "PWD": str(self.repository), "TERM": "dumb"}

    def end(self) -> None:
        """End what an agent has left running: the processes that have its home."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.home):
                    process.kill()
            except psutil.Error:
                continue


def codex(place: Workplace, prompts: Sequence[str]) -> None:
    """OpenAI's Codex, over Responses."""
    place.write(
        ".codex/config.toml",
        f"""
        model = "{MODEL}"
        model_provider = "levserve"
        model_context_window = {CONTEXT}
        model_reasoning_effort = "medium"
        check_for_update_on_startup = false
        [analytics]
        enabled = false
        [model_providers.levserve]
        name = "Levserve"
        base_url = "{place.url}/v1"
        env_key = "LEVSERVE_KEY"
        wire_api = "responses"
        request_max_retries = 0
        stream_max_retries = 0
        """,
    )
    program = [NODE, node_folder_of(HERE / "codex") / "node_modules/@openai/codex/bin/codex.js"]
    options = ["--dangerously-bypass-approvals-and-sandbox"]
    place.run(*program, "exec", *options, prompts[0], LEVSERVE_KEY=place.key)
    for prompt in prompts[1:]:
        place.run(*program, "exec", *options, "resume", "--last", prompt, LEVSERVE_KEY=place.key)


def claude_code(place: Workplace, prompts: Sequence[str]) -> None:
    """Anthropic's Claude Code, over Messages."""
    folder = node_folder_of(HERE / "claude_code", runs_scripts=True)
    program = folder / "node_modules/@anthropic-ai/claude-code/bin/claude.exe"
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")))
    environment = {"ANTHROPIC_BASE_URL": place.url, "ANTHROPIC_AUTH_TOKEN": place.key} | dict.fromkeys(models, MODEL)
    environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    for i, prompt in enumerate(prompts):
        more = ["--continue"] if i else []
        place.run(program, *more, "--print", prompt, "--allowedTools", "Bash", **environment)


def opencode(place: Workplace, prompts: Sequence[str]) -> None:
    """Opencode, over chats through the AI SDK."""
    _opencode(place, prompts, {})


def opencode_reasoning(place: Workplace, prompts: Sequence[str]) -> None:
    """Opencode with a model that it is told to reason."""
    _opencode(place, prompts, {"reasoning": True, "options": {"reasoningEffort": "high"}})


def _opencode(place: Workplace, prompts: Sequence[str], model: Mapping[str, Any]) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key},
        "models": {MODEL: {"limit": {"context": CONTEXT, "output": 8192}, **model}},
    }
    settings = {"provider": {"levserve": provider}, "autoupdate": False, "share": "disabled"}
    place.write(".config/opencode/opencode.json", settings)
    folder = node_folder_of(HERE / "opencode", runs_scripts=True)
    program = folder / "node_modules/opencode-ai/bin/opencode.exe"
    offline = [f"OPENCODE_DISABLE_{name}" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")]
    for i, prompt in enumerate(prompts):
        more = ["--continue"] if i else []
        place.run(program, "run", "--model", f"levserve/{MODEL}", *more, prompt, **dict.fromkeys(offline, "1"))


def pi(place: Workplace, prompts: Sequence[str]) -> None:
    """Pi over chats, with a model that it is told to reason."""
    _pi(place, prompts, "openai-completions")


def pi_responses(place: Workplace, prompts: Sequence[str]) -> None:
    """Pi over Responses."""
    _pi(place, prompts, "openai-responses")


def _pi(place: Workplace, prompts: Sequence[str], api: str) -> None:
    model = {"id": MODEL, "reasoning": True, "contextWindow": CONTEXT}
    provider = {"baseUrl": f"{place.url}/v1", "api": api, "apiKey": place.key, "models": [model]}
    place.write(".pi/agent/models.json", {"providers": {"levserve": provider}})
    program = node_folder_of(HERE / "pi") / "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"
    for i, prompt in enumerate(prompts):
        more = ["--continue"] if i else []
        arguments = ["--model", f"levserve/{MODEL}", *more, "--print", prompt]
        place.run(NODE, program, *arguments, PI_OFFLINE="1", PI_TELEMETRY="0")


def cline(place: Workplace, prompts: Sequence[str]) -> None:
    """Cline, over chats; without a terminal it goes on with a conversation only as editors have it."""
    program = node_folder_of(HERE / "cline") / "node_modules/.bin/cline"
    provider = ["--provider", "openai-compatible", "--baseurl", f"{place.url}/v1"]
    place.run(program, "auth", *provider, "--apikey", place.key, "--modelid", MODEL)
    account = {"CLINE_PROVIDER": "openai-compatible", "CLINE_MODEL": MODEL, "CLINE_API_KEY": place.key}
    with EditorProtocol(place, [str(program), "--acp", "--auto-approve", "true"], account) as editor:
        editor.call("initialize", protocolVersion=1, clientCapabilities={})
        session = editor.call("session/new", cwd=str(place.repository), mcpServers=[])["sessionId"]
        editor.call("session/set_model", sessionId=session, modelId=MODEL)
        for prompt in prompts:
            editor.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": prompt}])


class EditorProtocol:
    """An agent that speaks the Agent Client Protocol, JSON-RPC in lines; Source: https://agentclientprotocol.com."""

    def __init__(self, place: Workplace, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._place = place
        self._process = subprocess.Popen(
            command,
            cwd=place.repository,
            env=place.environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._num_calls = 0
        self._deadline = threading.Timer(RUN_TIMEOUT_S, self._process.kill)
        self._deadline.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.cancel()
        self._process.kill()
        self._process.communicate()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the agent and return its result; what the agent asks meanwhile is allowed."""
        self._num_calls += 1
        self._send(id=self._num_calls, method=method, params=params)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._place.printed.append(line)
            message = json.loads(line)
            if message.get("id") == self._num_calls and "method" not in message:
                assert "result" in message, message
                return message["result"]
            if message.get("method") == "session/request_permission":
                option = message["params"]["options"][0]["optionId"]
                self._send(id=message["id"], result={"outcome": {"outcome": "selected", "optionId": option}})
        raise AssertionError("\n".join(self._place.printed))

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()


def qwen_code(place: Workplace, prompts: Sequence[str]) -> None:
    """Qwen Code, over chats."""
    program = node_folder_of(HERE / "qwen_code") / "node_modules/@qwen-code/qwen-code/cli-entry.js"
    account = ["--auth-type", "openai", "--openai-base-url", f"{place.url}/v1", "--openai-api-key", place.key]
    for i, prompt in enumerate(prompts):
        more = ["--continue"] if i else []
        place.run(NODE, program, *account, "--model", MODEL, "--yolo", *more, prompt)


def aider(place: Workplace, prompts: Sequence[str]) -> None:
    """Aider, over chats through LiteLLM; it calls no tools and applies what its model writes."""
    # It would fetch a newer list of prices.
    place.write(".aider/caches/model_prices_and_context_window.json", {"none": {}})
    program = Path(python_of(HERE / "aider" / "program.py")).with_name("aider")
    refused = ["--no-check-update", "--analytics-disable", "--no-show-release-notes", "--no-show-model-warnings"]
    plain = ["--no-pretty", "--no-fancy-input", "--no-gitignore", "--yes-always", "--edit-format", "diff"]
    account = {
        "OPENAI_API_BASE": f"{place.url}/v1",
        "OPENAI_API_KEY": place.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    lines = "".join(f"{prompt}\n" for prompt in prompts)
    place.run(program, "--model", f"openai/{MODEL}", *refused, *plain, answers=lines, **account)


def mini_swe_agent(place: Workplace, prompts: Sequence[str]) -> None:
    """mini-SWE-agent, over chats through LiteLLM; it has one task, and each of its steps runs a command."""
    program = Path(python_of(HERE / "mini_swe_agent" / "program.py")).with_name("mini")
    account = {
        "OPENAI_API_BASE": f"{place.url}/v1",
        "OPENAI_API_KEY": place.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    quiet = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    }
    place.run(
        program, "--yolo", "--exit-immediately", "--model", f"openai/{MODEL}", "--task", prompts[0], **account, **quiet
    )
