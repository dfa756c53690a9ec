"""The build's scripts as they stand, run with a docker, a gcloud and a levserve that write down their arguments."""

import os
import re
import subprocess
from dataclasses import dataclass
from string import Template

import pytest

from tests.deploy.test_cloud_build import ROOT, STEPS

DOCKERFILE = (ROOT / "Dockerfile").read_text()

REVISION = "levserve-00002-abc"
GCLOUD = f"""#!/usr/bin/env bash
echo "gcloud $*" >> "$CALLS"
case "$*" in
  *"$FAILS"*) exit 1 ;;
  *"value(status.url)"*) echo https://levserve-abc-uc.a.run.app ;;
  *latestCreatedRevisionName*) echo {REVISION} ;;
  *print-identity-token*) echo t0ken ;;
  *"secrets versions access"*) echo k3y-1,k3y-2 ;;
esac
"""
RECORDED = """#!/usr/bin/env bash
echo "{name} $*" >> "$CALLS"
case "{name} $*" in *"$FAILS"*) exit 1 ;; esac
"""


@dataclass
class Ran:
    """What a build did."""

    done: list[str]  # the steps that ended well
    calls: list[str]
    said: str


@pytest.fixture
def build(tmp_path):
    """Run the steps in their order until one fails; by default from the prewarm on."""
    bin_folder, calls = tmp_path / "bin", tmp_path / "calls"
    bin_folder.mkdir()
    scripts = {"gcloud": GCLOUD} | {name: RECORDED.format(name=name) for name in ("docker", "levserve")}
    for name, script in scripts.items():
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)

    def run(
        *, fails: str = "nothing fails", service: str = "levserve", secret: str = "", first: str = "prewarm"
    ) -> Ran:
        calls.write_text("")
        environment = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "FAILS": fails,
            "PROJECT_ID": "my-project",
            "BUILD_ID": "b1",
            "_TAG": "b1",
            "_REGION": "us-central1",
            "_SERVICE": service,
            "_ACCELERATOR": "cuda12",
            "_MODEL": "my-8b",
            "_API_KEY_SECRET": secret,
            "_IMAGE": "registry/levserve-cuda12",
            "_PREWARM_IMAGE": "registry/levserve-prewarm-cuda12",
        }
        done, said = [], ""
        for name in list(STEPS)[list(STEPS).index(first) :]:
            script = STEPS[name]["script"].replace("/workspace/", f"{tmp_path}/")
            ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
            said += ran.stdout + ran.stderr
            if ran.returncode:
                break
            done.append(name)
        return Ran(done, calls.read_text().splitlines(), said)

    return run


def moves(ran: Ran) -> list[str]:
    return [call for call in ran.calls if "update-traffic" in call]


def test_a_green_build_moves_all_traffic_to_the_revision_that_was_tested(build):
    ran = build()
    assert ran.done == ["prewarm", "deploy", "smoke", "promote"], ran.said
    [smoke] = [call for call in ran.calls if call.startswith("levserve")]
    assert smoke.startswith("levserve smoke https://candidate---levserve-abc-uc.a.run.app --timeout 1800")
    assert smoke.endswith("--model my-8b")
    [move] = moves(ran)
    assert f"--to-revisions={REVISION}=100" in move
    assert ran.calls.index(smoke) < ran.calls.index(move)


def test_the_images_that_are_built_are_pushed_tested_and_deployed(build):
    calls = build(first="build").calls
    built = {
        re.search("--target ([a-z]+)", call)[1]: re.search(r"--tag (\S+:b1)", call)[1]
        for call in calls
        if call.startswith("docker build")
    }
    assert built.keys() <= set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    pushed = {call.removeprefix("docker push ") for call in calls if call.startswith("docker push")}
    assert set(built.values()) <= pushed
    [job] = [call for call in calls if "run jobs update" in call]
    [deploy] = [call for call in calls if "run services update " in call]
    assert f"--image={built['prewarm']} " in f"{job} "
    assert f"--image={built['serve']} " in f"{deploy} "
    tested = Template(STEPS["smoke"]["name"]).substitute(_IMAGE="registry/levserve-cuda12", _TAG="b1")
    assert tested == built["serve"]


def test_the_job_and_the_service_get_their_images_and_the_revision_no_traffic(build):
    calls = build().calls
    assert "gcloud run jobs update levserve-prewarm" in calls[0]
    assert "--image=registry/levserve-prewarm-cuda12:b1" in calls[0]
    [deploy] = [call for call in calls if "run services update " in call]
    assert "--image=registry/levserve-cuda12:b1 --tag=candidate --no-traffic" in deploy


@pytest.mark.parametrize(
    ("fails", "done", "look"),
    [
        ("run jobs execute", [], "gcloud run jobs executions list --job=levserve-prewarm"),
        ("--tag=candidate", ["prewarm"], "gcloud run services logs read levserve"),
        ("levserve smoke", ["prewarm", "deploy"], "gcloud run services logs read levserve"),
        ("update-traffic", ["prewarm", "deploy", "smoke"], f"gcloud run revisions describe {REVISION}"),
    ],
)
def test_whatever_fails_traffic_stays_and_the_build_says_how_to_look_further(build, fails, done, look):
    ran = build(fails=fails)
    assert ran.done == done
    assert fails == "update-traffic" or moves(ran) == []
    assert "Traffic is where" in ran.said
    assert look in ran.said


def test_the_first_of_several_keys_goes_to_the_smoke_test_in_a_file(build, tmp_path):
    ran = build(secret="levserve-api-key")
    assert ran.done[-1] == "promote"
    assert (tmp_path / "api_key").read_text() == "k3y-1\n"
    assert (tmp_path / "identity_token").read_text() == "t0ken\n"
    [smoke] = [call for call in ran.calls if call.startswith("levserve")]
    assert f"--identity-token @{tmp_path}/identity_token" in smoke
    assert f"--api-key @{tmp_path}/api_key" in smoke
    assert not any(secret in call for call in ran.calls for secret in ("t0ken", "k3y"))


def test_without_a_service_nothing_is_deployed(build):
    ran = build(service="")
    assert ran.done == ["prewarm", "deploy", "smoke", "promote"]
    assert ran.calls == []
