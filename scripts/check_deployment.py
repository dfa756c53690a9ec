"""Check everything that deploys the service: Terraform, the Dockerfile, the build, and every documented gcloud command.

hadolint and check-jsonschema are development packages, so they always run. gcloud, terraform and checkov are not: if
one is missing, its check prints what it skipped, and passes.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from scripts import check_scan, check_settings, check_terraform
from scripts.check_chart import check_chart
from scripts.platform_rules.check import idle_rules, violations
from scripts.platform_rules.commands import facts_of_build, facts_of_command, facts_of_dockerfile
from scripts.platform_rules.plans import facts_of_plan
from scripts.platform_rules.rules import RULES

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKERFILE = REPOSITORY / "Dockerfile"
CLOUD_BUILD = REPOSITORY / "cloudbuild.yaml"
BUNDLE_BUILD = REPOSITORY / "cloudbuild.bundle.yaml"
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
DOCUMENTS = ("README.md", "docs/**/*.md", "terraform/README.md", "CONTRIBUTING.md")

# Tests that plan what a rule advises against, to see that it is possible or warned of.
EXPECTED = (
    ("a_gpu_that_the_region_lacks", "breaks gpu-region"),
    ("another_user_can_be_tried", "breaks tpu-user"),
)

GCLOUD = re.compile(r"(?<![\w./-])gcloud(?= +[a-z])")
FENCE = re.compile(r"^ *```(?:bash|sh|shell|console) *\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TERRAFORM_STRING = re.compile(r'"(gcloud (?:[^"\\]|\\.)*)"')
# Placeholders for values: $(command), ${name}, $name, and Terraform's ${…}.
PLACEHOLDER = re.compile(r"\$\([^()]*\)|\$\{[^{}]*\}|\$\w+")


def main() -> int:
    """Run all checks; return 0 if none fails."""
    with ThreadPoolExecutor(1) as pool:
        scanning = pool.submit(check_scan.scan)
        is_terraform_right, plans = check_terraform.check()
        is_scan_clean, said = scanning.result()
    print(said)
    checks = [
        is_terraform_right,
        is_scan_clean,
        check_platform_rules(plans),
        check_environments(plans),
        check_chart(plans),
        check_dockerfile(),
        *(check_schema(build, "cloudbuild") for build in (CLOUD_BUILD, BUNDLE_BUILD)),
        *(check_schema(workflow, "github-workflows") for workflow in WORKFLOWS),
        check_gcloud_lines(),
    ]
    return int(not all(checks))


def check_platform_rules(plans: dict[str, dict[str, Any]]) -> bool:
    """Hold the platform's rules against every plan, the build, the Dockerfile and every gcloud command."""
    facts = [fact for build in (CLOUD_BUILD, BUNDLE_BUILD) for fact in facts_of_build(build.name, build.read_text())]
    facts += facts_of_dockerfile(DOCKERFILE.name, DOCKERFILE.read_text())
    # A Terraform output is in one piece only in a plan.
    lines = [(source, command) for source, command in gcloud_lines() if not source.endswith("outputs.tf")]
    lines += [
        (origin, output["after"])
        for origin, plan in plans.items()
        for output in plan.get("output_changes", {}).values()
        if isinstance(output.get("after"), str) and output["after"].startswith("gcloud ")
    ]
    facts += [fact for source, command in lines for fact in facts_of_command(source, command.partition(" | ")[0])]
    facts += [fact for origin, plan in plans.items() for fact in facts_of_plan(origin, plan)]
    broken = [text for text in violations(facts) if not any(test in text and rule in text for test, rule in EXPECTED)]
    # Without terraform there are no plans, and rules about them are idle.
    idle = idle_rules(facts) if plans else set()
    print(f"platform: {len(RULES)} rules held against {len(facts)} facts of {len(plans)} plans, commands and the build")
    for text in broken:
        print(f"platform: {text}")
    if idle:
        print(f"platform: nothing is held against {', '.join(sorted(idle))}")
    return not broken and not idle


def check_environments(plans: dict[str, dict[str, Any]]) -> bool:
    """Start the service's settings with the environment of every plan."""
    refused = check_settings.refusals(plans)
    number = sum(1 for plan in plans.values() for _ in check_settings.environments(plan))
    print(f"settings: the environments of {number} planned services, {len(refused)} refused")
    for text in refused:
        print(f"settings: {text}")
    return not refused


def check_dockerfile() -> bool:
    """Lint the Dockerfile."""
    return passed("hadolint Dockerfile", ["hadolint", "--failure-threshold", "warning", str(DOCKERFILE)])


def check_schema(document: Path, schema: str) -> bool:
    """Validate a YAML file against a published schema, which is part of the tool."""
    command = ["check-jsonschema", "--builtin-schema", f"vendor.{schema}", str(document)]
    return passed(f"schema of {document.name}", command)


def check_gcloud_lines() -> bool:
    """Lint every gcloud command in the documents, the build and the Terraform outputs."""
    lines = list(gcloud_lines())
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        print(f"gcloud: not installed: {len(lines)} commands are not checked")
        return True
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"command_string": command} for command in dict.fromkeys(command for _, command in lines)], file)
        file.flush()
        linted = subprocess.run(
            [gcloud, "meta", "lint-gcloud-commands", f"--commands-file={file.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
    if linted.returncode:
        print(f"gcloud: linting failed:\n{linted.stderr}")
        return False
    wrong = [verdict for verdict in json.loads(linted.stdout) if not verdict["success"]]
    for verdict in wrong:
        print(f"gcloud: {verdict['command_string']}\n  {verdict['error_message']}")
    for file_name in sorted({source for source, _ in lines}):
        print(f"gcloud: {sum(source == file_name for source, _ in lines)} commands of {file_name} linted")
    return not wrong


def gcloud_lines() -> Iterator[tuple[str, str]]:
    """Yield (file, command) for every gcloud command that a person or a build runs."""
    for pattern in DOCUMENTS:
        for document in sorted(REPOSITORY.glob(pattern)):
            for block in FENCE.findall(document.read_text()):
                yield from ((str(document.relative_to(REPOSITORY)), command) for command in commands_of(block))
    for step in yaml.safe_load(CLOUD_BUILD.read_text())["steps"]:
        yield from ((CLOUD_BUILD.name, command) for command in commands_of(step.get("script", "")))
    for outputs in sorted(REPOSITORY.glob("terraform/*/outputs.tf")):
        for text in TERRAFORM_STRING.findall(outputs.read_text()):
            yield from (
                (str(outputs.relative_to(REPOSITORY)), command) for command in commands_of(text.replace('\\"', '"'))
            )


def commands_of(script: str) -> Iterator[str]:
    """Yield the gcloud commands of a shell script, each on one line, with `x` for every placeholder."""
    script = re.sub(r" *\\\n\s*", " ", script)
    for line in script.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for match in GCLOUD.finditer(line):
            is_quoted = (
                line[: match.start()].replace("$(", "").count('"') % 2 == 1 and "$(" not in line[: match.start()][-3:]
            )
            yield PLACEHOLDER.sub("x", _until_end(PLACEHOLDER.sub("x", line[match.start() :]), is_quoted)).strip()


def _until_end(text: str, is_quoted: bool) -> str:
    """Cut the text at the end of the command: a shell operator, a closing bracket, or the quote around the command."""
    quote = ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character == '"' and is_quoted:
            return text[:index]
        elif character in "\"'":
            quote = character
        elif character in ")|;&>#" or text[index:].startswith(" <"):
            return text[:index]
    return text


def tool(name: str) -> str | None:
    """Return the path of a tool next to this Python, otherwise on PATH."""
    path = Path(sys.executable).parent / name
    return str(path) if path.is_file() else shutil.which(name)


def passed(title: str, command: Sequence[str]) -> bool:
    """Run a tool of the development packages and print its result."""
    name, *arguments = command
    found = tool(name)
    if found is None:
        print(f"{title}: {name} is not installed; `make .venv/dev` installs it")
        return False
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    print(f"{title}: {'ok' if done.returncode == 0 else 'failed'}")
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
