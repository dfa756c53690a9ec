"""The dashboard and the alert rules: every series, label and value that they name is one that the service exposes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from service.observability.metrics import Metrics

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
SERIES = re.compile(r"((?:levserve|process)_[a-z_0-9]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
OF_PROMETHEUS = {"job", "instance"}  # labels that a scrape adds


def exposed() -> dict[str, set[str]]:
    """Return the labels of every series, by its name."""
    metrics = Metrics()
    metrics.http_responses.labels("/v1/models", "200").inc()
    metrics.request_refusals.labels("x").inc()
    model = metrics.of_model("a")
    model.engine_steps.labels("decode").inc()
    model.model_loads.labels("ready").inc()
    metrics.startup_phase_seconds.labels("weights").inc()
    metrics.bundle_load.labels("hit").inc()
    names: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def expressions() -> list[str]:
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    rules = [
        rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    return shown + asked + [rule["expr"] for rule in rules]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_what_is_exposed(expression: str):
    names = exposed()
    found = SERIES.findall(expression)
    assert found
    for name, selector in found:
        assert name in names
        assert {label for label, _ in LABEL.findall(selector)} <= names[name] | OF_PROMETHEUS
    [own] = {frozenset(names[name]) for name, _ in found[:1]}
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        assert set(labels.replace(" ", "").split(",")) <= own | OF_PROMETHEUS | {"le"} | names[found[-1][0]]


def test_a_bound_that_an_objective_names_is_one_of_the_histogram():
    metrics = Metrics()
    metrics.of_model("a")
    bounds = {
        (sample.name, sample.labels["le"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if "le" in sample.labels
    }
    named = [found for text in expressions() for found in re.findall(r'(levserve_\w+_bucket)\{[^}]*le="([^"]+)"', text)]
    assert named
    assert set(named) <= bounds


def test_every_alert_says_what_to_do():
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["annotations"].keys() == {"summary", "remedy"}


def test_the_panels_lie_beside_each_other():
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})
