"""What a person gives to a deployment, and the tools that it takes: checked before anything is made.

Source: docs/deploy/operations.md, https://cloud.google.com/tpu/pricing (prices of us-central1, rounded)
"""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from scripts.deploy.shell import ask, given, read

# vCPU and GiB of the recommended shape, and the accelerator of the image.
GPUS = {"nvidia-l4": (8, 32, "cuda12"), "nvidia-rtx-pro-6000": (20, 80, "cuda13"), "none": (4, 16, "cpu")}
GPU_NAMES = {"l4": "nvidia-l4", "rtx": "nvidia-rtx-pro-6000", "rtx-pro-6000": "nvidia-rtx-pro-6000", "cpu": "none"}
# GPU, vCPU and memory of such an instance, always allocated.
GPU_USD_PER_HOUR = {"nvidia-l4": 1.4, "nvidia-rtx-pro-6000": 3.2, "none": 0.3}
# Machine, topology and chips.
TPUS = {
    "v5e-1": ("ct5lp-hightpu-1t", "1x1", 1),
    "v5e-4": ("ct5lp-hightpu-4t", "2x2", 4),
    "v6e-1": ("ct6e-standard-1t", "1x1", 1),
    "v6e-4": ("ct6e-standard-4t", "2x2", 4),
    "v6e-8": ("ct6e-standard-8t", "2x4", 8),
}
TPU_NAMES = {"v5e": "v5e-1", "v6e": "v6e-1"}
TPU_USD_PER_CHIP_HOUR = {"ct5l": 1.2, "ct6e": 2.7}
CAPACITIES = ("on_demand", "spot", "flex_start")
# The oldest versions with what the roots and commands use.
TOOLS = {
    "gcloud": (528, 0, "https://cloud.google.com/sdk/docs/install, or gcloud components update"),
    "terraform": (1, 11, "https://developer.hashicorp.com/terraform/install"),
}
BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")


@dataclass(frozen=True)
class Buckets:
    """The names of the buckets for checkpoints and for bundles."""

    models: str
    bundles: str


def check_tools(*names: str) -> None:
    """Check that commands are there, and not too old.

    Raises:
        SystemExit: one is missing or too old.
    """
    for name in names:
        major, minor, source = TOOLS.get(name, (0, 0, "make .venv/serve, and run this by make"))
        if shutil.which(name) is None:
            sys.exit(f"{name} is not installed: {source}. Nothing was made.")
        found = _version(name) if name in TOOLS else None
        if found is not None and found < (major, minor):
            sys.exit(
                f"{name} is {found[0]}.{found[1]}, and {major}.{minor} or newer is needed: {source}. Nothing was made."
            )


def project(default: str) -> str:
    """Return the id of the project."""
    value = ask("PROJECT", "the id of the project", default)
    if not re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", value):
        refuse(
            "PROJECT", value, "is not the id of a project: 6 to 30 of a-z, 0-9 and '-'; neither its name nor its number"
        )
    return value


def region() -> str:
    """Return the region."""
    value = ask("REGION", "the region", "us-central1")
    if not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+", value):
        refuse("REGION", value, "is not a region, such as us-central1")
    return value


def zone(region: str) -> str:
    """Return a zone of the region."""
    value = ask("ZONE", "a zone that has this TPU", f"{region}-a")
    if not ZONE.fullmatch(value) or not value.startswith(f"{region}-"):
        refuse("ZONE", value, f"is not a zone of {region}, such as {region}-a")
    return value


def model() -> str:
    """Return the checkpoint: a folder that holds one, hf://org/name, or gs://bucket/folder; org/name is the Hub's."""
    value = ask("MODEL", "the folder of the checkpoint, org/name of the Hub, or gs://… in the model bucket")
    if value.startswith(("hf://", "gs://")):
        if not re.fullmatch(r"(hf|gs)://[A-Za-z0-9][\w.-]*/[^\s]+", value):
            refuse("MODEL", value, "is neither hf://org/name nor gs://bucket/folder")
        return value
    folder = Path(value).expanduser()
    if not folder.exists() and re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", value):
        return f"hf://{value}"
    if not (folder / "config.json").is_file() and not any(folder.glob("step-*")):
        refuse(
            "MODEL",
            value,
            "holds neither config.json nor step-…: give the folder of a checkpoint, hf://org/name, or gs://…",
        )
    return value


def gpu() -> tuple[str, tuple[int, int, str]]:
    """Return the GPU by Google's name, and the shape and the image that suit it."""
    value = ask("GPU", "the GPU: l4, rtx or none", "l4").lower()
    name = choice("GPU", GPU_NAMES.get(value, value), [*GPUS, *GPU_NAMES])
    return name, GPUS[name]


def tpu() -> tuple[str, str, int]:
    """Return the machine, the topology and the number of chips of a TPU."""
    value = ask("TPU", f"the TPU: {', '.join(TPUS)}", "v5e-1").lower()
    return TPUS[choice("TPU", TPU_NAMES.get(value, value), [*TPUS, *TPU_NAMES])]


def capacity() -> str:
    """Return how the TPU is provided."""
    return choice("CAPACITY", ask("CAPACITY", ", ".join(CAPACITIES), "on_demand").replace("-", "_"), CAPACITIES)


def buckets(project: str) -> Buckets:
    """Return the names of the buckets, which are global: another project may have the default ones."""
    models = given("MODEL_BUCKET") or f"{project}-models"
    bundles = given("BUNDLE_BUCKET") or f"{project}-bundles"
    for variable, name in (("MODEL_BUCKET", models), ("BUNDLE_BUCKET", bundles)):
        if not BUCKET.fullmatch(name):
            refuse(variable, name, "is not a bucket's name alone: 3 to 63 of a-z, 0-9, '-', '_' and '.'")
    if models == bundles:
        refuse("BUNDLE_BUCKET", bundles, "is the bucket of the models too: who uploads a model could plant native code")
    return Buckets(models, bundles)


def alerts(project: str) -> str:
    """Return the variables of the foundation for who is told of alerts and of spending."""
    email, budget = given("ALERT_EMAIL"), given("MONTHLY_BUDGET")
    if email and not re.fullmatch(r"[^@\s\"]+@[^@\s\"]+\.[^@\s\"]+", email):
        refuse("ALERT_EMAIL", email, "is not an address of e-mail")
    if budget and (not budget.isdecimal() or int(budget) == 0):
        refuse("MONTHLY_BUDGET", budget, "is not a whole number above 0, in the currency of the billing account")
    lines = [f'alert_email        = "{email}"'] if email else []
    if budget:
        account = read("gcloud", "billing", "projects", "describe", project, "--format=value(billingAccountName)")
        if not account:
            refuse("MONTHLY_BUDGET", budget, "needs the project's billing account, which this login may not read")
        lines += [
            f'billing_account    = "{account.removeprefix("billingAccounts/")}"',
            f"monthly_budget     = {budget}",
        ]
    if not email:
        print("No ALERT_EMAIL: alerts are shown in the console alone.")
    if not budget:
        print("No MONTHLY_BUDGET: nobody is told of spending.")
    return "".join(f"{line}\n" for line in lines)


def member(account: str) -> str:
    """Return an account as a member of an IAM policy."""
    kind = "serviceAccount" if account.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{account}"


def choice(variable: str, value: str, choices: tuple[str, ...] | list[str]) -> str:
    """Return a value that is one of the choices."""
    if value not in choices:
        close = get_close_matches(value, choices, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        refuse(variable, value, f"is none of {', '.join(choices)}.{hint}")
    return value


def refuse(variable: str, value: str, reason: str) -> NoReturn:
    """End with one line: the variable, its value, and what is wrong with it."""
    end = "" if reason.endswith("?") else "."
    sys.exit(f"{variable}={value} {reason}{end} Nothing was made.")


def _version(name: str) -> tuple[int, int] | None:
    """Return the first two numbers of a tool's version; None where it does not say."""
    printed = read(name, "version", "-json" if name == "terraform" else "--format=json")
    try:
        stated = json.loads(printed)
        text = stated["terraform_version"] if name == "terraform" else stated["Google Cloud SDK"]
    except (ValueError, KeyError, TypeError):
        return None
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else None
