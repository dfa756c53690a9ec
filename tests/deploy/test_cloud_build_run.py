"""The build's scripts as they stand, run with a docker, a gcloud and a levserve that write down their arguments."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from string import Template

import pytest

from tests.deploy.test_cloud_build import ROOT, STEPS

DOCKERFILE = (ROOT / "Dockerfile").read_text()

REVISION, STABLE = "levserve-00002-abc", "levserve-00001-xyz"
CANARY = ["judge-0", "canary-5", "judge-5", "canary-50", "judge-50", "promote", "judge-100", "settle"]
GCLOUD = f"""#!/usr/bin/env bash
echo "gcloud $*" >> "$CALLS"
case "$*" in
  *"$FAILS"*) exit 1 ;;
  *"value(status.url)"*) echo https://levserve-abc-uc.a.run.app ;;
  *latestCreatedRevisionName*) echo {REVISION} ;;
  *"status.traffic.percent"*) printf '\t%s\n100\t%s\n' {REVISION} {STABLE} ;;
  *print-identity-token*) echo t0ken ;;
  *"secrets versions access"*) echo k3y-1,k3y-2 ;;
esac
"""
RECORDED = """#!/usr/bin/env bash
echo "{name} $*" >> "$CALLS"
case "{name} $*" in *"$FAILS"*) exit 1 ;; esac
"""
# The stable revision answers after 0.2 s. The candidate is as FAULT says, from PERCENT of the traffic on.
LEVSERVE = f"""#!/usr/bin/env bash
echo "levserve $*" >> "$CALLS"
case "levserve $*" in *"$FAILS"*) exit 1 ;; esac
percent=0 fault= status=passed first_s=0.2 said=$(<"$CALLS")
while read -r line; do
  if [[ $line == *--to-revisions={REVISION}=* ]] && ((${{line##*=}} > percent)); then percent=${{line##*=}}; fi
done <<< "$said"
if [[ $2 == *candidate---* ]] && ((percent >= PERCENT)); then fault=$FAULT; fi
since=${{said##*stable---}}
only=${{since//candidate---/}}
num_candidates=$(((${{#since}} - ${{#only}}) / 12))
if [[ $fault == wrong ]]; then status=failed; fi
if [[ $fault == "dies under load" && $since != "$said" ]] && ((num_candidates > 4)); then status=failed; fi
if [[ $fault == slower ]]; then first_s=2.0; fi
echo '{{"checks": [{{"name": "chat", "status": "'$status'"}},'
echo '{{"name": "latency", "status": "passed", "facts": {{"first_token_seconds_p50": '$first_s'}}}}]}}'
[[ $status == passed ]]
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
    scripts = {"gcloud": GCLOUD} | {name: RECORDED.format(name=name) for name in ("docker",)} | {"levserve": LEVSERVE}
    for name, script in scripts.items():
        (bin_folder / name).write_text(script)
        (bin_folder / name).chmod(0o755)

    def run(
        *, fails: str = "nothing fails", service: str = "levserve", secret: str = "", first: str = "prewarm",
        fault: str = "", percent: int = 0, canary: str = "true",
    ) -> Ran:  # fmt: skip
        calls.write_text("")
        environment = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "FAILS": fails,
            "FAULT": fault,
            "PERCENT": str(percent),
            "PROJECT_ID": "my-project",
            "BUILD_ID": "b1",
            "_TAG": "b1",
            "_REGION": "us-central1",
            "_SERVICE": service,
            "_ACCELERATOR": "cuda12",
            "_MODEL": "my-8b",
            "_CHECK": "",
            "_CANARY": canary,
            "_API_KEY_SECRET": secret,
            "_IMAGE": "registry/levserve-cuda12",
            "_PREWARM_IMAGE": "registry/levserve-prewarm-cuda12",
        }
        done, said = [], ""
        for name in list(STEPS)[list(STEPS).index(first) :]:
            script = STEPS[name]["script"].replace("/workspace/", f"{tmp_path}/")
            script = script.replace("=/workspace ", f"={tmp_path} ").replace(
                "python scripts/", f"{sys.executable} scripts/"
            )
            ran = subprocess.run(
                ["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
            )
            said += ran.stdout + ran.stderr
            if ran.returncode:
                break
            done.append(name)
        return Ran(done, calls.read_text().splitlines(), said)

    return run


def moves(ran: Ran) -> list[str]:
    """Where traffic went, in this order."""
    return [call.partition("--to-revisions=")[2] for call in ran.calls if "--to-revisions=" in call]


def test_a_green_build_moves_all_traffic_to_the_revision_that_was_tested(build):
    ran = build()
    assert ran.done == ["prewarm", "deploy", "smoke", *CANARY], ran.said
    smoke = next(call for call in ran.calls if call.startswith("levserve"))
    assert smoke.startswith("levserve smoke https://candidate---levserve-abc-uc.a.run.app --timeout 1800")
    assert smoke.endswith("--model my-8b")
    assert moves(ran) == [f"{REVISION}=5", f"{REVISION}=50", f"{REVISION}=100"]
    first = next(call for call in ran.calls if "--to-revisions=" in call)
    assert ran.calls.index(smoke) < ran.calls.index(first)


@pytest.mark.parametrize(
    ("fault", "percent", "failed"),
    [
        ("slower", 0, "canary-5"),
        ("slower", 5, "canary-50"),
        ("slower", 50, "promote"),
        ("slower", 100, "settle"),
        ("wrong", 5, "canary-50"),
        ("dies under load", 0, "canary-5"),
    ],
)
def test_a_revision_that_is_bad_at_any_step_loses_its_traffic(build, fault, percent, failed):
    ran = build(fault=fault, percent=percent, first="deploy")
    assert ran.done[-1] == CANARY[CANARY.index(failed) - 1], ran.said
    assert moves(ran)[-1] == f"{STABLE}=100"
    reasons = {"slower": "the first token takes 2.000 s", "wrong": "levserve smoke failed: chat"}
    assert f"Rolled back: {reasons.get(fault, '')}" in ran.said
    assert fault != "dies under load" or "clients at once failed" in ran.said


def test_a_revision_that_answers_wrong_at_once_gets_no_traffic(build):
    ran = build(fault="wrong", first="deploy")
    assert ran.done == ["deploy"]
    assert moves(ran) == []


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
    assert deploy.endswith("--image=registry/levserve-cuda12:b1 --no-traffic")
    assert any(call.endswith(f"--update-tags=stable={STABLE},candidate={REVISION}") for call in calls)


@pytest.mark.parametrize(
    ("fails", "done", "look"),
    [
        ("run jobs execute", [], "gcloud run jobs executions list --job=levserve-prewarm"),
        ("--no-traffic", ["prewarm"], "gcloud run services logs read levserve"),
        ("levserve smoke", ["prewarm", "deploy"], "gcloud run services logs read levserve"),
        ("--to-revisions", ["prewarm", "deploy", "smoke", "judge-0"], f"gcloud run revisions describe {REVISION}"),
    ],
)
def test_whatever_fails_traffic_stays_and_the_build_says_how_to_look_further(build, fails, done, look):
    ran = build(fails=fails)
    assert ran.done == done
    assert [move for move in moves(ran) if move.startswith(REVISION)] == (
        [f"{REVISION}=5"] if "judge-0" in done else []
    )
    assert "Traffic is where" in ran.said
    assert look in ran.said


def test_the_first_of_several_keys_goes_to_the_smoke_test_in_a_file(build, tmp_path):
    ran = build(secret="levserve-api-key")
    assert ran.done[-1] == "settle"
    assert (tmp_path / "api_key").read_text() == "k3y-1\n"
    assert (tmp_path / "identity_token").read_text() == "t0ken\n"
    smoke = next(call for call in ran.calls if call.startswith("levserve"))
    assert f"--identity-token @{tmp_path}/identity_token" in smoke
    assert f"--api-key @{tmp_path}/api_key" in smoke
    assert not any(secret in call for call in ran.calls for secret in ("t0ken", "k3y"))


def test_without_a_service_nothing_is_deployed(build):
    ran = build(service="")
    assert ran.done == ["prewarm", "deploy", "smoke", *CANARY]
    assert ran.calls == []


def test_without_a_comparison_the_smoke_test_decides_and_all_traffic_moves_at_once(build):
    ran = build(canary="")
    assert moves(ran) == [f"{REVISION}=100"], ran.said
    assert len([call for call in ran.calls if call.startswith("levserve")]) == 1
    assert moves(build(canary="", fails="levserve smoke")) == []


def test_a_source_that_was_tested_is_not_tested_again(build):
    ran = build(service="", first="check")
    assert ran.done[:2] == ["check", "build"], ran.said
