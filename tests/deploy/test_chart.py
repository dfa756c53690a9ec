"""The Helm chart, rendered by Helm: valid documents of each example, refusals by name, commands that run."""

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, lint

from scripts.check_chart import CHART, differences
from service.observability.metrics import Metrics
from tests.offline.test_batch import line
from tests.process import ServiceProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CHART / "examples").glob("*.yaml"))}
KUBERNETES = ("1.30", "1.37")
CUSTOM = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "custom_resources").glob("*.json")
}
IMAGE = {"image": "levserve:1"}


@pytest.fixture(scope="module")
def chart():
    with Chart.load(CHART) as loaded:
        yield loaded


def documents(chart, values):
    files = chart.render(values=values, name="chat", namespace="models")
    texts = [text for name, text in files.items() if not name.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def of_kind(chart, values, kind):
    return [document for document in documents(chart, values) if document["kind"] == kind]


def check_document(document):
    if (schema := CUSTOM.get(document["kind"])) is not None:
        jsonschema.validate(document, schema)
    else:
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_documents_that_kubernetes_takes(chart, example):
    found = documents(chart, EXAMPLES[example])
    assert len(found) >= 3
    for document in found:
        check_document(document)
    names = [(document["kind"], document["metadata"]["name"]) for document in found]
    assert len(names) == len(set(names))


def test_a_misspelt_field_is_seen(chart):
    [deployment] = of_kind(chart, IMAGE, "Deployment")
    deployment["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        check_document(deployment)
    [route] = of_kind(chart, EXAMPLES["claim"], "HTTPRoute")
    route["spec"]["parentRef"] = {}
    with pytest.raises(jsonschema.ValidationError):
        check_document(route)


def test_helm_finds_nothing_to_say():
    assert [
        message for message in lint(CHART, values=IMAGE).get("messages", []) if message["severity"] == "ERROR"
    ] == []


def test_kserve_takes_the_runtime_and_the_model():
    for document in yaml.safe_load_all((ROOT / "deploy/kserve/serving_runtime.yaml").read_text()):
        assert document["kind"] in CUSTOM
        check_document(document)


@pytest.mark.parametrize("name", ["ray_job", "ray_service"])
def test_kuberay_takes_the_examples(name):
    for document in yaml.safe_load_all((ROOT / f"deploy/ray/{name}.yaml").read_text()):
        check_document(document)
        if document["kind"] not in CUSTOM:
            continue
        spec = document["spec"]
        cluster = spec["rayClusterSpec" if name == "ray_job" else "rayClusterConfig"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            check_document(group["template"] | {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}})


KEY = {"API_KEY": {"name": "keys", "key": "API_KEY"}}
POOL = {"enabled": True, "endpointPicker": {"name": "picker"}}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "image: is empty"),
        ({**IMAGE, "replica": 2}, "replica"),
        ({**IMAGE, "autoscaling": {"minReplica": 1}}, "minReplica"),
        ({**IMAGE, "modelArtifacts": {"uri": "s3://bucket/model"}}, "uri"),
        ({**IMAGE, "accelerator": {"type": "amd", "count": 1}}, "accelerator"),
        ({**IMAGE, "env": {"max_num_seqs": 3}}, "max_num_seqs"),
        ({**IMAGE, "accelerator": {"type": "nvidia"}}, "accelerator.count: is 0, and accelerator.type nvidia needs"),
        ({**IMAGE, "accelerator": {"count": 1}}, "accelerator.count: a pod on CPUs has none"),
        ({**IMAGE, "env": {"PORT": 80}}, "env.PORT: the chart sets it"),
        ({**IMAGE, "env": {"API_KEY": "secret"}}, "env.API_KEY: is a key. Take it from a secret"),
        ({**IMAGE, "secretEnv": KEY, "env": {"API_KEY": "a"}}, "secretEnv.API_KEY: is in env too"),
        ({**IMAGE, "secretEnv": {"API_KEY": {"name": "keys"}}}, "key"),
        ({**IMAGE, "autoscaling": {"type": "hpa", "minReplicas": 0}}, "a horizontal autoscaler cannot go to 0"),
        ({**IMAGE, "autoscaling": {"minReplicas": 5}}, "autoscaling.minReplicas: is more than"),
        ({**IMAGE, "autoscaling": {"type": "keda"}}, "autoscaling.serverAddress: is empty"),
        (
            {**IMAGE, "autoscaling": {"type": "keda", "serverAddress": "http://p", "minReplicas": 0}},
            "autoscaling.wakeQuery: is empty",
        ),
        ({**IMAGE, "prewarm": {"enabled": True}}, "prewarm.enabled: needs env.BUNDLE_URI"),
        ({**IMAGE, "httpRoute": {"enabled": True}}, "httpRoute.gateway.name: is empty"),
        ({**IMAGE, "inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name: is empty"),
        ({**IMAGE, "inferencePool": POOL, "secretEnv": KEY}, "Set env.METRICS_PORT"),
        ({**IMAGE, "healthCheckPolicy": {"enabled": True}}, "without httpRoute.enabled"),
        ({**IMAGE, "batch": {"enabled": True, "input": "gs://b/in"}}, "batch.input, batch.output: name both"),
        (
            {**IMAGE, "batch": {"enabled": True, "input": "gs://b/in", "output": "gs://b/in/out"}},
            "batch.output: lies inside batch.input",
        ),
        (
            {**IMAGE, "batch": {"enabled": True, "input": "pvc://a/in", "output": "gs://b/out"}},
            "pvc://a/in is on another claim than modelArtifacts.uri",
        ),
    ],
)
def test_values_that_are_none_or_contradict_are_refused_by_name(chart, values, reason):
    with pytest.raises(HelmError) as error:
        chart.render(values=values, name="chat", namespace="models")
    assert reason in str(error.value)


def test_series_that_replicas_follow_exist(chart):
    [scaled] = of_kind(chart, EXAMPLES["claim"], "ScaledObject")
    queries = " ".join(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
    [autoscaler] = of_kind(chart, EXAMPLES["nvidia"], "HorizontalPodAutoscaler")
    queries += autoscaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    metrics = Metrics()
    metrics.of_model("m")
    exposed = metrics.exposition().decode()
    for name in ("levserve_num_requests_waiting", "levserve_num_requests_running"):
        assert name in queries
        assert name in exposed


def test_a_drift_from_terraforms_workload_is_seen(chart):
    [deployment] = of_kind(chart, EXAMPLES["tpu"], "Deployment")
    other = copy.deepcopy(deployment)
    assert differences(copy.deepcopy(deployment), copy.deepcopy(other)) == []
    other["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSeconds"] = 31
    other["spec"]["template"]["spec"]["enableServiceLinks"] = True
    assert differences(deployment, other) == [
        "pod.containers.levserve.livenessProbe.periodSeconds is 30 in the chart, 31 in Terraform",
        "pod.enableServiceLinks is False in the chart, True in Terraform",
    ]


def test_a_job_of_a_batch_says_each_pod_its_shard(chart):
    [job] = of_kind(chart, EXAMPLES["batch"], "Job")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["suspend"]) == ("Indexed", 4, True)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    [container] = spec["template"]["spec"]["containers"]
    assert container["args"] == [
        "batch", "gs://my-project-data/requests", "gs://my-project-data/answers/", "--shards", "4", "--max-error-rate",
        "0.1",
    ]  # fmt: skip
    assert of_kind(chart, EXAMPLES["batch"], "Deployment") == []


def container_of(document):
    [container] = document["spec"]["template"]["spec"]["containers"]
    return container


def environment_of(container, mounted):
    """The environment of a container, with its claim's folder on this machine."""
    plain = {entry["name"]: entry["value"].replace("/mnt/", f"{mounted}/") for entry in container["env"]}
    return os.environ | plain


@pytest.mark.slow
def test_each_command_of_the_chart_answers_or_completes_with_its_own_environment(chart, tmp_path, cold_start):
    """Without a cluster: containers as processes, whose folder `claim` is the volume."""
    demo = tmp_path / "claim" / "demo"
    shutil.copytree(ROOT / "service" / "demo", demo)
    values = {
        **IMAGE,
        "modelArtifacts": {"uri": "pvc://claim/demo", "name": "chat"},
        "env": {"BUNDLE_URI": "/mnt/claim/bundles", "MAX_NUM_SEQS": 4},
        "prewarm": {"enabled": True},
    }
    found = documents(chart, values)
    [prewarm] = [container_of(document) for document in found if document["kind"] == "Job"]
    command = [sys.executable, "-m", "service"]
    done = subprocess.run(
        [*command, *prewarm["args"]],
        env=environment_of(prewarm, tmp_path),
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    [serve] = [container_of(document) for document in found if document["kind"] == "Deployment"]
    given = {entry["name"]: entry["value"].replace("/mnt/", f"{tmp_path}/") for entry in serve["env"]}
    with ServiceProcess(**given) as service:  # on a free port, as each pod has ports of its own
        service.wait_for("ready", timeout_s=280)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert httpx.get(f"{service.url}{serve[probe]['httpGet']['path']}").status_code == 200
        answer = httpx.post(f"{service.url}/v1/completions", json={"model": "chat", "prompt": "Once", "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert service.stop(signal.SIGTERM) == 0
    (tmp_path / "claim" / "in").mkdir()
    lines = [line(f"n{i}", model="chat") for i in range(300)]
    (tmp_path / "claim" / "in" / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    places = {"input": "pvc://claim/in", "output": "pvc://claim/out"}
    [job] = of_kind(chart, {**values, "prewarm": {}, "batch": {"enabled": True, "shards": 2, **places}}, "Job")
    batch = container_of(job)
    arguments = [argument.replace("/mnt/", f"{tmp_path}/") for argument in batch["args"]]
    pods = [
        subprocess.Popen(
            [*command, *arguments], env=environment_of(batch, tmp_path) | {"JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.DEVNULL,
        )
        for index in range(job["spec"]["completions"])
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for pod in pods:
            stack.callback(pod.kill)
        assert [pod.wait(280) for pod in pods] == [0, 0]
    counts = json.loads((tmp_path / "claim" / "out" / "manifest.json").read_text())["counts"]
    assert counts == {"lines": 300, "succeeded": 300, "failed": 0}
