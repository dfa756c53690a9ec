"""Terraform: what `terraform test` cannot see. The plans themselves are tested by scripts/check_terraform.py."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from service.observability.metrics import Metrics
from service.start.progress import Phase

ROOT = Path(__file__).parents[2]
ROOTS = sorted(path.parent for path in (ROOT / "terraform").glob("*/versions.tf"))
MODULES = sorted(path.parent for path in (ROOT / "terraform" / "modules").glob("*/main.tf"))
VARIABLE = re.compile(r'^variable "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
RESOURCE = re.compile(r'^resource "(\w+)" "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)

each_root = pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
each_module = pytest.mark.parametrize("root", [*ROOTS, *MODULES], ids=lambda root: root.name)


def text_of(root: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(root.glob("*.tf")))


def resources_of(kind: str) -> dict[str, str]:
    """The bodies of all resources of a kind, by root and name."""
    return {
        f"{root.name}/{name}": body
        for root in [*ROOTS, *MODULES]
        for k, name, body in RESOURCE.findall(text_of(root))
        if k == kind
    }


def test_there_are_five_roots_and_what_they_share():
    assert [root.name for root in ROOTS] == ["cloud_run_gpu", "foundation", "github", "gke_cluster", "gke_tpu"]
    assert [module.name for module in MODULES] == ["monitoring", "settings"]


@each_module
def test_no_root_configures_a_provider(root):
    """A module with a provider block refuses `for_each`."""
    assert not re.search(r"^provider ", text_of(root), re.MULTILINE)


@each_module
def test_every_resource_of_a_project_names_it(root):
    """Without a provider block there is no default project."""
    of_others = {  # these name a project in their parent, or belong to a cluster
        "google_service_account_iam_member", "google_storage_bucket_iam_member", "google_project_iam_member",
    }  # fmt: skip
    for kind, name, body in RESOURCE.findall(text_of(root)):
        if kind.startswith("google_") and kind not in of_others:
            assert re.search(r"^  project +=", body, re.MULTILINE), (kind, name)


@each_root
def test_providers_are_locked_to_versions_that_satisfy_the_root(root):
    locked = (root / ".terraform.lock.hcl").read_text()
    required = dict(
        re.findall(r'source += "hashicorp/(\w+)"\n +version = "~> (\d+)\.0"', (root / "versions.tf").read_text())
    )
    found = re.findall(r'hashicorp/(\w+)" \{\n +version +=[ ]"(\d+)\.\d+\.\d+"', locked)
    assert dict(found) == required


def test_what_both_platforms_take_is_refused_in_one_place():
    """A message that is written twice drifts apart."""
    messages = [
        message
        for root in (ROOT / "terraform" / name for name in ("cloud_run_gpu", "gke_tpu", "modules/settings"))
        for message in set(re.findall(r'error_message = "(.+)"$', (root / "variables.tf").read_text(), re.MULTILINE))
    ]
    assert {message for message in messages if messages.count(message) > 1} <= {
        "cache_gib must be a whole number of at least 1.",  # its other limits are the platform's
    }


def test_the_example_of_two_models_uses_the_roots_as_modules():
    text = (ROOT / "terraform/examples/two_models/main.tf").read_text()
    assert "for_each = local.models" in text
    assert set(re.findall(r'source += "\.\./\.\./(\w+)"', text)) == {"foundation", "cloud_run_gpu"}


def test_files_are_formatted():
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", ROOT / "terraform"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@each_module
def test_variables_are_typed_described_and_in_order(root):
    variables = VARIABLE.findall((root / "variables.tf").read_text())
    assert [name for name, _ in variables] == sorted(name for name, _ in variables)
    for name, body in variables:
        assert "  type " in body, name
        assert re.search(r'  description = "[A-Z].+[.?]"', body), name


@each_module
def test_a_refusal_is_a_sentence(root):
    for message in re.findall(r'error_message = "(.+)"$', (root / "variables.tf").read_text(), re.MULTILINE):
        assert message.endswith("."), message
        assert message.count(" ") >= 4, message


@each_module
def test_booleans_are_positive(root):
    for name, body in VARIABLE.findall((root / "variables.tf").read_text()):
        if re.search(r"type += bool", body):
            assert not re.search(r"(^|_)(no|not|disable|disabled|skip)(_|$)", name), name


@each_root
def test_every_root_has_tests_and_says_what_it_gives(root):
    assert list(root.glob("tests/*.tftest.hcl"))
    for name, body in re.findall(
        r'^output "(\w+)" \{\n(.*?)^\}', (root / "outputs.tf").read_text(), re.MULTILINE | re.DOTALL
    ):
        assert "  description = " in body, name


def test_data_is_destroyed_only_with_a_variable_of_its_own():
    buckets = resources_of("google_storage_bucket")
    assert {"foundation/models", "foundation/bundles"} <= buckets.keys()
    for name in ("foundation/models", "foundation/bundles"):
        assert re.search(r"force_destroy += var\.data_deletion_enabled$", buckets[name], re.MULTILINE)
    variables = dict(VARIABLE.findall((ROOT / "terraform/foundation/variables.tf").read_text()))
    assert re.search(r"default += false", variables["data_deletion_enabled"])
    assert not any("prevent_destroy" in text_of(root) for root in ROOTS)  # a literal: a teardown would need an editor


def test_one_grant_alone_writes_bundles():
    grants = resources_of("google_storage_bucket_iam_member")
    on_bundles = {name: body for name, body in grants.items() if "= local.bundles" in body}
    assert {name: re.search(r'role += "(.+)"', body)[1] for name, body in on_bundles.items()} == {
        "foundation/bundles_read": "roles/storage.objectViewer",
        "foundation/bundles_write": "roles/storage.objectUser",
    }
    assert 'local.emails["prewarm"]' in on_bundles["foundation/bundles_write"]


def test_the_public_is_named_in_one_place():
    places = [
        path
        for path in (ROOT / "terraform").glob("*/*.tf")
        if "allUsers" in path.read_text() and path.name != "variables.tf"
    ]
    assert [path.relative_to(ROOT / "terraform").as_posix() for path in places] == ["cloud_run_gpu/access.tf"]


def test_no_resource_holds_a_secrets_value():
    for root in ROOTS:
        assert not re.search(r"google_secret_manager_secret_version|kubernetes_secret_v1|secret_data", text_of(root)), (
            root.name
        )


def test_gcloud_and_terraform_do_not_fight():
    (service,) = resources_of("google_cloud_run_v2_service").values()
    ignored = re.search(r"ignore_changes = \[(.*?)\n    \]", service, re.DOTALL)[1]
    for field in (
        "client",
        "client_version",
        "traffic",
        "template[0].annotations",
        "template[0].containers[0].image",
        "template[0].labels",
    ):
        assert re.search(rf"^ *{re.escape(field)},", ignored, re.MULTILINE), field


@each_root
def test_every_series_that_is_charted_or_alerts_exists(root):
    exposition = Metrics().exposition().decode()
    exported = set(re.findall(r"^# TYPE (levserve_\w+)", exposition, re.MULTILINE))
    used = {re.sub(r"_bucket$", "", name) for name in re.findall(r"(?<!user_)\blevserve_\w+", text_of(root))}
    assert used - exported == set()


@each_root
def test_every_label_that_a_query_picks_by_is_one_of_its_series(root):
    # Added by who scrapes: the sidecar of Cloud Run and Managed Prometheus.
    of_platform = {"cluster", "namespace", "service_name"}
    metrics, labels = Metrics(), {}
    for owner, added in ((metrics, set()), (metrics.of_model("a"), {"model_name"})):
        series = [collector for collector in vars(owner).values() if hasattr(collector, "_labelnames")]
        labels |= {collector._name: added | set(collector._labelnames) for collector in series}
    # Gauges of functions, which only show themselves with their samples.
    for metric in metrics.registry.collect():
        labels.setdefault(metric.name, {name for sample in metric.samples for name in sample.labels})
    text = re.sub(r"\$\{local\.of_\w+\}", "", text_of(root))
    picked = [
        (re.sub(r"_(total|bucket)$", "", name), set(re.findall(r"(\w+)=~?\\\"", selector)))
        for name, selector in re.findall(r"(?<!user_)\b(levserve_\w+)\{([^}]*)\}", text)
    ]
    for grouping, name in re.findall(r"sum by \(([\w, ]+)\) \(\w+\((levserve_\w+)", text):
        picked.append((re.sub(r"_(total|bucket)$", "", name), set(grouping.split(", ")) - {"le"}))
    assert picked or root.name in {"foundation", "github", "gke_cluster"}
    for name, names in picked:
        assert names <= labels[name] | of_platform, (name, names)


@each_root
def test_every_log_metric_that_is_charted_is_made_by_the_foundation(root):
    made = set(re.findall(r'name += "\$\{var\.name\}/(\w+)"', text_of(ROOT / "terraform" / "foundation")))
    used = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\$\{local\.log_metric\}_(\w+)", text_of(root))}
    assert used <= made == {"start_seconds", "start_phase_seconds"}
    assert used == made or root.name in {"foundation", "github", "gke_cluster"}


def test_the_log_metric_matches_what_a_start_logs(caplog):
    from service.start.progress import StartProgress

    caplog.set_level("INFO", "service.start.progress")
    progress = StartProgress(Metrics())
    for phase in Phase:
        with progress.phase(phase):
            pass
    progress.mark_ready()
    *phases, ready = caplog.records
    assert [record.message for record in phases] == [f"start: {phase}" for phase in Phase]
    assert [record.phase for record in phases] == [str(phase) for phase in Phase]
    assert ready.message == "ready"
    assert all(record.seconds >= 0 for record in caplog.records)
    filters = re.findall(
        r"filter += \"(.+)\"$", (ROOT / "terraform/foundation/monitoring.tf").read_text(), re.MULTILINE
    )
    assert any(r"jsonPayload.message=~\"^start: \"" in text for text in filters)
    assert any(r"jsonPayload.message=\"ready\"" in text for text in filters)


def test_the_keys_that_the_log_metrics_read_are_in_the_lines_as_printed(caplog, capsys):
    import json
    import logging

    from service.observability.logs import CloudJsonFormatter, Origin
    from service.start.progress import StartProgress

    handler = logging.StreamHandler()
    handler.setFormatter(CloudJsonFormatter(Origin()))
    logger = logging.getLogger("service.start.progress")
    caplog.set_level("INFO", "service.start.progress")
    logger.addHandler(handler)
    try:
        progress = StartProgress(Metrics())
        with progress.phase(Phase.LOCATE):
            pass
        progress.mark_ready()
    finally:
        logger.removeHandler(handler)
    phase, ready = map(json.loads, capsys.readouterr().err.splitlines())
    metrics = resources_of("google_logging_metric")
    for name, line in {"foundation/start_phase": phase, "foundation/start": ready}.items():
        read = set(re.findall(r"jsonPayload\.(\w+)", metrics[name]))
        assert {"message", "seconds"} <= read <= line.keys(), name
    assert re.search(r"jsonPayload\.phase", metrics["foundation/start_phase"])


def test_the_collector_scrapes_a_route_that_exists():
    from service.api.health import router

    [path] = re.findall(r'port = "http", path = "(\S+)"', text_of(ROOT / "terraform" / "gke_tpu"))
    assert path in {route.path for route in router.routes}


@pytest.mark.parametrize("path", ["/health/ready", "/health/live"])
def test_the_probes_ask_routes_that_exist(path):
    from service.api.health import router

    assert path in {route.path for route in router.routes}
    probed = set(re.findall(r'path += "(/health/\w+)"', "\n".join(map(text_of, [*ROOTS, *MODULES]))))
    assert path in probed
    assert probed <= {"/health/ready", "/health/live"}


def test_every_waiver_of_the_scan_has_a_reason():
    waivers = re.findall(r"^  - (CKV\w+)(.*)$", (ROOT / ".checkov.yaml").read_text(), re.MULTILINE)
    assert len(waivers) == len({name for name, _ in waivers}) > 0
    assert [name for name, reason in waivers if not re.match(r" # \w.{20,}", reason)] == []
