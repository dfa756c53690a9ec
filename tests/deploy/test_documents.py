"""Every command of the documents, as printed, names what exists: flags, targets, files, variables, outputs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.check_deployment import FENCE
from service.cli import build_parser
from service.settings import Settings
from tests.smoke.stand_in import StandIn, StandInServer

ROOT = Path(__file__).parents[2]
DEPLOY_PAGES = [ROOT / "docs" / "deploy.md", *sorted((ROOT / "docs" / "deploy").glob("*.md"))]
PAGES = [ROOT / "README.md", *DEPLOY_PAGES, ROOT / "terraform/README.md"]
DEPLOY = "\n".join(page.read_text() for page in DEPLOY_PAGES)
BLOCKS = [(page.name, block) for page in PAGES for block in FENCE.findall(page.read_text())]
# What stands for a value, as the shell would fill it in; and where a command ends.
PLACEHOLDER = re.compile(r"\$\([^()]*\)|\$\{?\w+\}?")
COMMAND_END = re.compile(r"\s(?:[|;&>#]|\d>)")
SETTINGS_FILE = re.compile(r"^cat > settings\.yaml <<END\n(.*?)^END", re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[str]:
    """All uses of a command in shell blocks, each on one line and without what follows it in a pipe."""
    found = []
    for _, block in BLOCKS:
        for line in re.sub(r" *\\\n\s*", " ", block).splitlines():
            if line.startswith("#"):
                continue
            for match in re.finditer(rf"(?:^|[\s|(]){name} (?=[-.\w])", line):
                found.append(COMMAND_END.split(PLACEHOLDER.sub("x", line[match.start() :]))[0].strip())
    return found


def variables_of(root: str) -> set[str]:
    return set(re.findall(r'^variable "(\w+)"', (ROOT / "terraform" / root / "variables.tf").read_text(), re.MULTILINE))


def outputs_of(root: str) -> set[str]:
    return set(re.findall(r'^output "(\w+)"', (ROOT / "terraform" / root / "outputs.tf").read_text(), re.MULTILINE))


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_every_block_is_shell(page, block):
    ran = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (page, ran.stderr)


def test_every_levserve_command_parses():
    texts = commands("levserve(?= (?:serve|smoke|prewarm|batch) )")
    assert len([text for text in texts if text.startswith("levserve smoke")]) >= 4
    for text in texts:
        if text.endswith("--help"):
            continue
        words = shlex.split(text)[1:]
        # An address that the shell fills in, and a file that is not here.
        words = ["http://x" if word == "x" else "x" if word.startswith("@") else word for word in words]
        build_parser().parse_args(words)


def test_every_make_target_exists():
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for text in commands("make") for word in text.split()[1:] if "=" not in word}
    assert {"serve", "image", ".venv/serve"} <= named
    assert named <= targets


def test_every_terraform_command_names_variables_and_outputs_that_exist():
    texts = [text for text in commands("terraform") if "-chdir=" in text]
    assert len(texts) >= 10
    for text in texts:
        root = re.search(r"-chdir=terraform/(\w+)", text)[1]
        assert set(re.findall(r"-var=(\w+)=", text)) <= variables_of(root), text
        assert set(re.findall(r" output -raw (\w+)", text)) <= outputs_of(root), text


def test_every_variable_that_the_prose_names_exists():
    known = {name for root in ("foundation", "cloud_run_gpu", "gke_cluster", "gke_tpu") for name in variables_of(root)}
    assignments = set(re.findall(r"`(\w+) =[ \n]", DEPLOY))
    assert {"invokers", "secret_env", "min_instances"} <= assignments
    assert assignments <= known


def test_every_file_that_a_command_reads_exists():
    for text in [*commands("terraform"), *commands("cp"), *commands("gcloud")]:
        for path in re.findall(r"(?:^cp |--config=|-var-file=|-chdir=)([\w./-]+)", text):
            assert (ROOT / path).exists() or (ROOT / "terraform" / "cloud_run_gpu" / path).exists(), text


def test_every_build_names_a_target_and_an_accelerator_of_the_dockerfile():
    dockerfile = (ROOT / "Dockerfile").read_text()
    for text in commands("docker"):
        for name in re.findall(r"--target[= ](\w+)", text):
            assert f" AS {name}\n" in dockerfile, text
        for name in re.findall(r"ACCELERATOR=(\w+)", text):
            assert re.search(rf"one of cpu,[\w, ]*{name}|{name}, cuda12", dockerfile), text


def test_every_substitution_exists():
    known = set(yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())["substitutions"])
    named = set(re.findall(r"[=,](_[A-Z_]+)=", DEPLOY))
    assert {"_SERVICE", "_ACCELERATOR", "_TAG", "_API_KEY_SECRET"} <= named <= known


def test_the_quickstart_leads_to_every_page():
    quickstart = (ROOT / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"\]\(deploy/(\w+\.md)\)", quickstart)) == {page.name for page in DEPLOY_PAGES[1:]}


def test_the_settings_of_the_first_journey_start_a_service():
    [text] = SETTINGS_FILE.findall(DEPLOY)
    settings = yaml.safe_load(text.replace("$PROJECT", "my-project").replace("$MODEL", "my-8b"))
    read = Settings(**{name.lower(): value for name, value in settings.items()})
    assert read.checkpoint_uri == "gs://my-project-models/my-8b"
    assert read.max_concurrent_requests == 2 * read.max_num_seqs
    assert f"--concurrency={read.max_concurrent_requests} " in DEPLOY


def test_no_key_is_on_a_command_line():
    for text in [*commands("levserve(?= smoke)"), *commands("docker"), *commands("gcloud"), *commands("kubectl")]:
        assert not re.search(r"API_KEY=(?!levserve-api-key:latest|/dev/stdin)", text), text
        assert all(value.startswith(("@", '"@')) for value in re.findall(r"--api-key[= ](\S+)", text)), text


def test_the_snippet_for_a_service_behind_iam_answers(tmp_path):
    """The snippet as printed, but for the address; the token comes from where the program would get it."""
    [snippet] = re.findall(r"^```python\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)
    (tmp_path / "sitecustomize.py").write_text(
        "import google.oauth2.id_token\n"
        "google.oauth2.id_token.fetch_id_token = lambda request, audience: 'token-for-' + audience\n"
    )
    stand_in = StandIn(api_key="unused")
    with StandInServer(stand_in) as server:
        stand_in.identity_token = f"token-for-{server.url}"
        program = tmp_path / "program.py"
        program.write_text(snippet.replace("https://levserve-abc-uc.a.run.app", server.url).replace("my-8b", "tiny"))
        ran = subprocess.run(
            [sys.executable, str(program)],
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stdout) == (0, "Hello"), ran.stderr
