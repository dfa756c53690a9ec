"""The platform's rules: each is noticed when it is broken, and plans, commands and the build are read as they are."""

import copy
import json
import re
from pathlib import Path

import pytest

from scripts import check_deployment
from scripts.platform_rules.check import idle_rules, violations
from scripts.platform_rules.commands import facts_of_build, facts_of_command, facts_of_dockerfile
from scripts.platform_rules.fact import Fact, gib, seconds
from scripts.platform_rules.plans import facts_of_plan
from scripts.platform_rules.rules import RULES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A fact of each kind, as the examples' plans, the documents and the build gave it.
SOUND = json.loads((HERE / "sound_facts.json").read_text())
PLAN = json.loads((HERE / "plan_of_l4_8b.json").read_text())


def sound(kind: str) -> Fact:
    fields = {name: set(value) if name in ("apis", "registries") else value for name, value in SOUND[kind].items()}
    return Fact(**fields)


def broken_rules(facts: list[Fact]) -> set[str]:
    return {re.search(r"breaks ([\w-]+):", text)[1] for text in violations(facts)}


def test_there_are_many_rules_each_with_a_name_and_a_source_of_its_own():
    assert len(RULES) >= 60
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source.startswith("https://"), rule.name
        assert rule.says.endswith("."), rule.name


@pytest.mark.parametrize("kind", sorted(SOUND))
def test_a_sound_fact_breaks_no_rule(kind):
    assert violations([sound(kind)]) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_fact_that_breaks_a_rule_is_noticed(rule):
    fact = Fact(**{**vars(sound(rule.about)), **rule.broken})
    assert rule.name in broken_rules([fact])


def test_a_rule_that_nothing_is_held_against_is_named():
    assert idle_rules([sound("run_job")]) == {rule.name for rule in RULES if rule.about != "run_job"}


def service(**changes: object) -> dict:
    """The plan of the L4 example, with other values in the container's limits or in the service's template."""
    plan = copy.deepcopy(PLAN)
    [after] = [change["change"]["after"] for change in plan["resource_changes"] if change["type"].endswith("_service")]
    template = after["template"][0]
    container = template["containers"][0]
    for name, value in changes.items():
        match name:
            case "cpu" | "memory":
                container["resources"][0]["limits"][name] = value
            case "failure_threshold":
                container["startup_probe"][0][name] = value
            case "env":
                container["env"] += value
            case _:
                template[name] = value
    return plan


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({}, set()),
        ({"cpu": "6", "memory": "30Gi"}, {"memory-by-cpu"}),  # the example of issue 18
        ({"cpu": "5", "memory": "16Gi"}, {"cpu-values"}),
        ({"cpu": "4", "memory": "32Gi"}, {"memory-by-cpu"}),
        ({"failure_threshold": 181}, {"startup-budget"}),
        ({"timeout": "3700s"}, {"request-timeout"}),
        ({"max_instance_request_concurrency": None}, {"concurrency"}),
        ({"scaling": [{"max_instance_count": 2}]}, {"first-memory-quota"}),
        ({"gpu_zonal_redundancy_disabled": False}, {"no-zonal-redundancy"}),
        ({"env": [{"name": "PORT", "value": "1"}]}, {"reserved-variables"}),
        ({"vpc_access": [{"egress": "PRIVATE_RANGES_ONLY"}]}, {"weights-over-the-subnet"}),
    ],
)
def test_a_plan_is_read_as_it_is(changes, rules):
    assert broken_rules(list(facts_of_plan("x", service(**changes)))) == rules


def test_a_job_that_terraform_executes_is_noticed():
    plan = copy.deepcopy(PLAN)
    [after] = [change["change"]["after"] for change in plan["resource_changes"] if change["type"].endswith("_job")]
    after["run_execution_token"] = "one"
    assert broken_rules(list(facts_of_plan("x", plan))) == {"execution-token"}


DEPLOY = (
    "gcloud run deploy x --region=us-central1 --gpu=1 --gpu-type=nvidia-l4 --no-gpu-zonal-redundancy --cpu=8 "
    "--memory=32Gi --no-cpu-throttling --concurrency=32 --max-instances=1 --timeout=2100 --service-account=x "
    "--startup-probe=httpGet.path=/health/ready,periodSeconds=10,timeoutSeconds=5,failureThreshold=180"
)


@pytest.mark.parametrize(
    ("command", "rules"),
    [
        (DEPLOY, set()),
        (DEPLOY.replace("--cpu=8", "--cpu=6"), {"memory-by-cpu"}),
        (DEPLOY.replace("--max-instances=1", "--max-instances=2"), {"first-memory-quota"}),
        (DEPLOY.replace("--concurrency=32 ", ""), {"concurrency"}),
        (DEPLOY.replace("failureThreshold=180", "failureThreshold=181"), {"startup-budget"}),
        (DEPLOY.replace("--no-gpu-zonal-redundancy ", ""), {"no-zonal-redundancy"}),
        (DEPLOY.replace("us-central1", "us-west1"), {"gpu-region"}),
        (DEPLOY.replace("/health/ready", "/healthz"), {"no-path-in-z"}),
        (DEPLOY.replace("--service-account=x ", ""), {"own-identity"}),
        ("gcloud alpha run jobs deploy x --gpu=1 --gpu-type=nvidia-l4 --no-gpu-zonal-redundancy --task-timeout=13h",
         {"job-timeout"}),
        ("gcloud iam service-accounts create serve", {"service-account-name"}),
        ("gcloud storage buckets create gs://x --location=x", {"bucket-access"}),
        ("gcloud compute networks subnets create x --range=10.8.0.0/28 --enable-private-ip-google-access",
         {"subnet-size"}),
        ("gcloud container clusters get-credentials x --location=x", {"dns-endpoint"}),
        ("gcloud run services update x --image=y --no-traffic", set()),
        ("gcloud run services update x --image=y --no-traffic --tag=candidate", {"unnamed-revision"}),
        (f"{DEPLOY} --revision-suffix=b1", {"unnamed-revision"}),
        ("gcloud run services update-traffic x --to-tags=candidate=10", set()),
        ("gcloud run services update-traffic x --to-tags=a=60,b=50", {"traffic"}),
        ("gcloud services enable run", {"api-names"}),
    ],
)  # fmt: skip
def test_a_command_is_read_as_it_is(command, rules):
    assert broken_rules(list(facts_of_command("x", command))) == rules


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("", "", set()),
        ("timeout: 10800s", "timeout: 3600s", {"build-covers-prewarm"}),
        ("E2_HIGHCPU_32", "E2_HIGHCPU_64", {"build-machine"}),
        ("mirror.gcr.io/library/python", "python", {"docker-hub"}),
        ("automapSubstitutions: true", "automapSubstitutions: false", {"script-substitutions"}),
        ("dynamicSubstitutions: true", "dynamicSubstitutions: false", {"dynamic-substitutions"}),
        ("    env: [DOCKER_BUILDKIT=1]\n", "", {"inline-cache"}),
    ],
)
def test_the_build_is_read_as_it_is(old, new, rules):
    text = (ROOT / "cloudbuild.yaml").read_text().replace(old, new)
    assert broken_rules(list(facts_of_build("x", text))) == rules


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("", "", set()),
        ("RUN xargs", "RUN --mount=type=cache,target=/x xargs", {"no-buildkit"}),
        ("mirror.gcr.io/library/", "docker.io/library/", {"image-bases"}),
        ("USER 10001:10001", "USER root", {"image-user"}),
        ('ENTRYPOINT ["levserve"]', "ENTRYPOINT levserve", {"image-signals"}),
    ],
)
def test_the_dockerfile_is_read_as_it_is(old, new, rules):
    text = (ROOT / "Dockerfile").read_text().replace(old, new)
    assert broken_rules(list(facts_of_dockerfile("x", text))) == rules


def test_the_documents_and_the_build_keep_the_rules(capsys):
    assert check_deployment.check_platform_rules({}), capsys.readouterr().out


def test_a_plan_that_breaks_a_rule_is_red(capsys):
    assert not check_deployment.check_platform_rules({"x": service(cpu="6", memory="30Gi")})
    assert "breaks memory-by-cpu" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "value"), [("2100s", 2100), ("10m", 600), ("2h", 7200), ("600", 600), (None, None)])
def test_a_duration_is_read(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize(("text", "value"), [("32Gi", 32), ("512Mi", 0.5), ("1073741824", 1), ("", None)])
def test_a_quantity_is_read(text, value):
    assert gib(text) == value
