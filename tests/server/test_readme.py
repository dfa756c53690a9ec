"""The README's snippets work as printed."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def snippet(name: str, url: str) -> str:
    """Return a marked snippet, pointed at another port."""
    match = re.search(rf"<!-- snippet: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert match, name
    return match[1].replace("http://localhost:8080", url)


def test_the_curl_snippet(demo_service):
    ran = subprocess.run(
        ["bash", "-euc", snippet("curl", demo_service.url)], capture_output=True, text=True, timeout=60, check=True
    )
    assert '"finish_reason":"stop"' in ran.stdout
    assert "demo model" in ran.stdout


def test_the_openai_snippet(demo_service):
    ran = subprocess.run(
        [sys.executable, "-c", snippet("openai", demo_service.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Levserve" in ran.stdout
    assert ran.stdout.endswith("\n")
