"""Facts of documented gcloud commands, of the build, and of the Dockerfile."""

import ipaddress
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from scripts.platform_rules.fact import Fact, gib, seconds

# What a documented command or a script has in place of a value.
UNKNOWN = "x"


def flags_of(command: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a gcloud command and its flags; a flag without a value has an empty one."""
    words, flags = [], {}
    for word in shlex.split(command):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            flags[name] = value
        else:
            words.append(word)
    return [word for word in words if word not in ("gcloud", "alpha", "beta")], flags


def facts_of_command(origin: str, command: str) -> Iterator[Fact]:
    """Yield what a gcloud command asks of the platform."""
    words, flags = flags_of(command)
    for fact in _facts(words, flags):
        fact.origin = f"{origin}: {command}"
        yield fact


def _facts(words: list[str], flags: dict[str, str]) -> Iterator[Fact]:
    match words:
        case ["run", "deploy", *_]:
            yield from of_deploy(flags)
        case ["run", "jobs", "deploy" | "create", name, *_]:
            yield Fact(
                kind="run_job", name=name, gpu=flags.get("gpu-type"), timeout_s=seconds(flags.get("task-timeout")),
                num_tasks=1, max_retries=number(flags.get("max-retries")), is_executed_by_terraform=False,
                is_zonal_redundant="gpu-type" in flags and "no-gpu-zonal-redundancy" not in flags,
            )  # fmt: skip
            yield from of_shape("job", flags)
        case ["run", "services", "update", *_]:
            yield of_update(flags)
        case ["run", "services", "update-traffic", *_]:
            shares = flags.get("to-tags") or flags.get("to-revisions") or ""
            percents = [int(share.rpartition("=")[2]) for share in shares.split(",") if share[-1:].isdigit()]
            yield Fact(kind="traffic", percents=percents)
        case ["iam", "service-accounts", "create", name]:
            yield Fact(kind="service_account", name=name)
        case ["storage", "buckets", "create", url]:
            yield Fact(
                kind="bucket", name=url.removeprefix("gs://"), region=flags.get("location"),
                is_private={"uniform-bucket-level-access", "public-access-prevention"} <= flags.keys(),
            )  # fmt: skip
        case ["compute", "networks", "subnets", "create", _]:
            yield Fact(
                kind="subnet", prefix=ipaddress.ip_network(flags["range"]).prefixlen,
                has_private_access="enable-private-ip-google-access" in flags,
            )  # fmt: skip
        case ["artifacts", "repositories", "create", name]:
            yield Fact(kind="repository", name=name)
        case ["builds", "submit", *_]:
            names = [pair.partition("=")[0] for pair in flags.get("substitutions", "").split(",") if pair]
            yield Fact(
                kind="build_submit", substitutions=names, has_service_account="service-account" in flags,
                has_config="config" in flags,
            )  # fmt: skip
        case ["services", "enable", *names]:
            yield Fact(kind="services", names=names)
        case ["container", "clusters", "get-credentials", *_]:
            yield Fact(kind="credentials", has_dns_endpoint="dns-endpoint" in flags, has_location="location" in flags)


def number(text: str | None) -> float | None:
    """Return a number, or None for a value that only the shell knows."""
    return float(text) if text and text != UNKNOWN else None


def of_update(flags: dict[str, str]) -> Fact:
    """Return the fact of a new revision."""
    return Fact(kind="revision", is_named=bool({"tag", "revision-suffix"} & flags.keys()))


def of_deploy(flags: dict[str, str]) -> Iterator[Fact]:
    """Yield the facts of `gcloud run deploy`."""
    yield of_update(flags)
    gpu = flags.get("gpu-type")
    yield Fact(
        kind="run_service", gpu=gpu, region=known(flags.get("region")), launch_stage="GA",
        cpu=number(flags.get("cpu")), memory_gib=gib(flags.get("memory")),
        gpus=[flags["gpu"]] if "gpu" in flags else [],
        is_cpu_always_allocated="no-cpu-throttling" in flags,
        is_gen2=flags.get("execution-environment", "gen2") == "gen2",
        is_zonal_redundant=gpu is not None and "no-gpu-zonal-redundancy" not in flags,
        concurrency=number(flags.get("concurrency")), timeout_s=seconds(flags.get("timeout")),
        min_instances=number(flags.get("min") or flags.get("min-instances")) or 0,
        max_instances=number(flags.get("max-instances")), num_containers=1, num_ports=1,
        has_vpc="network" in flags, egress=flags.get("vpc-egress", "").replace("-", "_").upper() or None,
        has_service_account=True if "source" in flags else "service-account" in flags,
    )  # fmt: skip
    yield from of_shape("service", flags)
    for name in ("startup-probe", "liveness-probe"):
        if name in flags:
            probe = dict(pair.split("=", 1) for pair in flags[name].split(","))
            yield Fact(
                kind="run_probe", of=name.replace("-", "_"), has_gpu=gpu is not None,
                period_s=number(probe.get("periodSeconds")), timeout_s=number(probe.get("timeoutSeconds")),
                failures=number(probe.get("failureThreshold")), path=probe.get("httpGet.path"),
                initial_delay_s=number(probe.get("initialDelaySeconds")) or 0,
            )  # fmt: skip
    if "source" in flags:
        yield Fact(kind="source_deploy", has_region="region" in flags)


def of_shape(of: str, flags: dict[str, str]) -> Iterator[Fact]:
    """Yield the shape of the container that a command deploys."""
    yield Fact(
        kind="run_container", of=of, gpu=flags.get("gpu-type"), cpu=number(flags.get("cpu")),
        memory_gib=gib(flags.get("memory")), num_gpus=int(flags.get("gpu", 0)),
    )  # fmt: skip


def known(text: str | None) -> str | None:
    """Return a value, or None if only the shell knows it."""
    return None if text == UNKNOWN else text


def facts_of_build(origin: str, text: str) -> Iterator[Fact]:
    """Yield the facts of a Cloud Build configuration."""
    build: dict[str, Any] = yaml.safe_load(text)
    options = build.get("options", {})
    yield Fact(
        kind="build", origin=origin, timeout_s=seconds(build.get("timeout")), num_steps=len(build["steps"]),
        machine=options.get("machineType"), disk_gb=options.get("diskSizeGb"), logging=options.get("logging"),
        substitutions=list(build.get("substitutions", {})), dynamic=options.get("dynamicSubstitutions"),
        nested=[n for n, value in build.get("substitutions", {}).items() if "$" in str(value)],
        ids=[step["id"] for step in build["steps"]],
        longest_substitution=max((len(str(value)) for value in build.get("substitutions", {}).values()), default=0),
    )  # fmt: skip
    for step in build["steps"]:
        yield Fact(
            kind="build_step", origin=f"{origin}: {step['id']}", has_script="script" in step,
            has_args="args" in step or "entrypoint" in step, name=step["name"],
            needs_buildkit=bool(re.search(r"docker build|buildx", step.get("script", ""))),
            has_buildkit="DOCKER_BUILDKIT=1" in step.get("env", []),
            substitutions_in_script=bool(re.search(r"\$_[A-Z]", step.get("script", ""))),
            automaps=bool(step.get("automapSubstitutions") or options.get("automapSubstitutions")),
        )  # fmt: skip


def facts_of_dockerfile(origin: str, text: str) -> Iterator[Fact]:
    """Yield the facts of the Dockerfile."""
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    user = re.search(r"^USER (\S+)", lines, re.MULTILINE)
    yield Fact(
        kind="dockerfile", origin=origin, has_mount="--mount=" in lines, has_heredoc="<<" in lines,
        has_link="--link" in lines, user=user[1] if user else "root",
        signal=(re.findall(r"^STOPSIGNAL (\S+)", lines, re.MULTILINE) or ["SIGTERM"])[-1],
        registries={
            name.partition("/")[0]
            for name in re.findall(r"^(?:FROM|ARG PYTHON_IMAGE=) ?(\S+/\S+)", lines, re.MULTILINE)
        },
        entrypoint_is_exec=bool(re.search(r"^ENTRYPOINT \[", lines, re.MULTILINE)),
    )  # fmt: skip
