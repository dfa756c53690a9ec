"""Deploy to Cloud Run or GKE, or take everything down: ask what is missing, print each command, end with an answer."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from scripts.deploy import inputs, quota
from scripts.deploy.shell import REPOSITORY, ask, output, read, run, terraform

TAG = "first"


def cloud_run() -> None:
    """Serve a model on Cloud Run with a GPU."""
    inputs.check_tools("gcloud", "terraform", "levserve")
    project, region = place()
    model = inputs.model()
    gpu, (cpu, memory_gib, accelerator) = inputs.gpu()
    buckets = inputs.buckets(project)
    alerts = inputs.alerts(project)
    usd = inputs.GPU_USD_PER_HOUR[gpu]
    print(f"The service costs about {usd:.2f} USD for each hour that an instance runs, and nothing at rest.")
    print("A later version runs beside the one that it is compared with: two instances, and a third GPU to prewarm.")
    enable_apis(project)
    if not quota.check(project, region, "run.googleapis.com", quota.needs_of_gpu(gpu, cpu, memory_gib)):
        print("The quota has room for one instance: request more, or append ,_CANARY= to the command of later builds.")
    foundation(project, region, buckets, alerts)
    uri = upload(buckets, model)
    build(accelerator)
    images = f"{output('foundation', 'image_prefix')}/levserve"
    write("cloud_run_gpu", "foundation", output("foundation", "cloud_run_tfvars"))
    account = read("gcloud", "config", "get", "account")
    write("cloud_run_gpu", "deploy", f"""\
model_uri     = "{uri}"
image         = "{images}-{accelerator}:{TAG}"
prewarm_image = "{images}-prewarm-{accelerator}:{TAG}"
gpu_type      = "{gpu}"
cpu           = {cpu}
memory_gib    = {memory_gib}
invokers      = ["{inputs.member(account)}"]
""")  # fmt: skip
    terraform("cloud_run_gpu", "init", "-input=false")
    # First the job alone: the bundle that it makes lets the service's first start compile nothing.
    terraform("cloud_run_gpu", "apply", "-target=google_cloud_run_v2_job.prewarm")
    run(*shlex.split(output("cloud_run_gpu", "prewarm_command")))
    terraform("cloud_run_gpu", "apply")
    run(*shlex.split(output("cloud_run_gpu", "smoke_command")))
    url = output("cloud_run_gpu", "url")
    answer(f'curl --header="Authorization: Bearer $(gcloud auth print-identity-token)" {url}/v1/models')


def gke() -> None:
    """Serve a model on GKE with a TPU."""
    inputs.check_tools("gcloud", "terraform", "levserve")
    project, region = place()
    model = inputs.model()
    machine, topology, chips = inputs.tpu()
    zone = inputs.zone(region)
    capacity = inputs.capacity()
    buckets = inputs.buckets(project)
    alerts = inputs.alerts(project)
    usd = inputs.TPU_USD_PER_CHIP_HOUR[machine[:4]] * chips
    print(
        f"The TPU costs about {usd:.2f} USD an hour on demand, around the "
        "clock: one replica always runs. `make pause` stops it."
    )
    enable_apis(project, "compute.googleapis.com")
    need = quota.needs_of_tpu(machine, chips, capacity)
    if machine.startswith("ct5lp"):
        quota.check_region(project, region, need)
    else:
        quota.check(project, region, "compute.googleapis.com", [need])
    # A gcloud from a package of the system has no component manager, and these are packages too.
    if missing := [name for name in ("gke-gcloud-auth-plugin", "kubectl") if shutil.which(name) is None]:
        run("gcloud", "components", "install", *missing, "--quiet")
    foundation(project, region, buckets, alerts)
    uri = upload(buckets, model)
    build("tpu")
    images = f"{output('foundation', 'image_prefix')}/levserve"
    write("gke_cluster", "foundation", output("foundation", "gke_cluster_tfvars"))
    write("gke_cluster", "deploy", f'zone = "{zone}"\n')
    write("gke_tpu", "foundation", output("foundation", "gke_tpu_tfvars"))
    write("gke_tpu", "deploy", f"""\
zone             = "{zone}"
model_uri        = "{uri}"
image            = "{images}-tpu:{TAG}"
prewarm_image    = "{images}-prewarm-tpu:{TAG}"
tpu_machine_type = "{machine}"
tpu_topology     = "{topology}"
capacity         = "{capacity}"
""")  # fmt: skip
    terraform("gke_tpu", "init", "-input=false")
    # Compiled while the cluster is made; the prewarm job on the TPU takes the bundle, or makes it if there is none.
    terraform("gke_tpu", "apply", "-target=terraform_data.bundle")
    if bundle_command := output("gke_tpu", "bundle_command"):  # none where bundles are signed
        run(*shlex.split(bundle_command), "--async")
    terraform("gke_cluster", "init", "-input=false")
    terraform("gke_cluster", "apply")
    run(*shlex.split(output("gke_cluster", "credentials_command")))
    run(*shlex.split(output("gke_cluster", "adapter_command")))
    terraform("gke_tpu", "apply", env=kubernetes())
    run("bash", "-c", output("gke_tpu", "smoke_command"))
    print("In another terminal: kubectl port-forward --namespace=levserve service/levserve 8080:80")
    answer("curl http://127.0.0.1:8080/v1/models")


def teardown() -> None:
    """Delete everything that the other two made, from the outside in; data only on a clear answer."""
    inputs.check_tools("gcloud", "terraform")
    keep = ["-input=false"]
    if is_applied("cloud_run_gpu"):
        terraform("cloud_run_gpu", "apply", "-var=deletion_protection_enabled=false", *keep)
        terraform("cloud_run_gpu", "destroy", *keep)
    if is_applied("gke_tpu"):
        terraform("gke_tpu", "destroy", *keep, env=kubernetes())
    if is_applied("gke_cluster"):
        terraform("gke_cluster", "apply", "-var=deletion_protection_enabled=false", *keep)
        terraform("gke_cluster", "destroy", *keep)
    if ask("DELETE_DATA", "delete checkpoints and bundles too (yes or no)", "no") != "yes":
        print("The buckets, the registry, the network and the identities stay; they cost their storage.")
        return
    if not is_applied("foundation"):
        return
    terraform("foundation", "apply", "-var=data_deletion_enabled=true", *keep)
    terraform("foundation", "destroy", *keep)
    print("If the subnet is still in use: Cloud Run frees its addresses one to two hours later. Repeat then.")


def place() -> tuple[str, str]:
    """Return the project and the region."""
    project = inputs.project(read("gcloud", "config", "get", "project"))
    return project, inputs.region()


def enable_apis(project: str, *more: str) -> None:
    """Enable what the quota check and the first apply need; the foundation enables the rest."""
    names = ["serviceusage", "cloudresourcemanager", "cloudquotas"]
    run("gcloud", "services", "enable", *(f"{name}.googleapis.com" for name in names), *more, f"--project={project}")


def foundation(project: str, region: str, buckets: inputs.Buckets, alerts: inputs.Alerts) -> None:
    """Apply the foundation, and make the budget."""
    email = f'alert_email        = "{alerts.email}"\n' if alerts.email else ""
    write("foundation", "deploy", f"""\
project_id         = "{project}"
region             = "{region}"
model_bucket_name  = "{buckets.models}"
bundle_bucket_name = "{buckets.bundles}"
{email}""")  # fmt: skip
    terraform("foundation", "init", "-input=false")
    terraform("foundation", "apply")
    if alerts.monthly_budget:
        make_budget(project, alerts)


def make_budget(project: str, alerts: inputs.Alerts) -> None:
    """Make a budget that tells of half, 90 % and all of a sum; it stops nothing."""
    name, account = f"levserve in {project}", f"--billing-account={alerts.billing_account}"
    run("gcloud", "services", "enable", "billingbudgets.googleapis.com", f"--project={project}")
    budgets = ("gcloud", "billing", "budgets")
    if read(*budgets, "list", account, f"--filter=displayName='{name}'", "--format=value(name)"):
        return
    rules = [f"--threshold-rule=percent={share}" for share in (0.5, 0.9, 1.0)]
    amount = f"--budget-amount={alerts.monthly_budget}"
    run(*budgets, "create", account, f"--display-name={name}", amount, f"--filter-projects=projects/{project}", *rules)


def upload(buckets: inputs.Buckets, model: str) -> str:
    """Copy a checkpoint from a folder or the Hub into the model bucket, unless it is there; return its address."""
    if model.startswith("gs://"):
        return model
    if model.startswith("hf://"):
        uri = f"gs://{buckets.models}/{model.partition('@')[0].rpartition('/')[2]}"
        run("levserve", "import", model, uri)
        return uri
    folder = Path(model).expanduser()
    uri = f"gs://{buckets.models}/{folder.resolve().name}"
    run("gcloud", "storage", "rsync", str(folder), uri, "--recursive")
    return uri


def build(accelerator: str) -> None:
    """Build both images of an accelerator and push them; continuous integration has run the tests."""
    command = output("foundation", "build_command")
    run(*shlex.split(f"{command},_SERVICE=,_CHECK=,_ACCELERATOR={accelerator},_TAG={TAG}"))


def pause() -> None:
    """Stop what costs by the hour, and keep the rest: Cloud Run scales to zero, the TPU's replicas are none."""
    inputs.check_tools("gcloud", "terraform")
    if is_applied("cloud_run_gpu"):
        terraform("cloud_run_gpu", "apply", "-var=min_instances=0", "-input=false")
    if is_applied("gke_tpu"):
        run("kubectl", "--namespace=levserve", "delete", "horizontalpodautoscaler", "--all", "--ignore-not-found")
        run("kubectl", "--namespace=levserve", "scale", "deployment", "--all", "--replicas=0")
    print("To go on: the same make target that deployed.")


def kubernetes() -> dict[str, str]:
    """Return the variables that point Terraform's Kubernetes providers at the cluster."""
    config = os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config"))  # noqa: TID251 - kubectl's own
    return {"KUBE_CONFIG_PATH": config, "KUBE_CTX": output("gke_cluster", "kubernetes_context")}


def is_applied(root: str) -> bool:
    """Return whether a root was applied from this clone."""
    return bool(read("terraform", f"-chdir=terraform/{root}", "output", "-json").strip("{} \n"))


def write(root: str, name: str, text: str) -> None:
    """Write variables of a root into a file that it reads by itself and git ignores."""
    path = REPOSITORY / "terraform" / root / f"{name}.auto.tfvars"
    text = text if text.endswith("\n") else f"{text}\n"
    if path.exists() and path.read_text() != text:
        kept = path.with_suffix(".tfvars.before")
        path.replace(kept)
        print(f"kept the other values of before as {kept.relative_to(REPOSITORY)}")
    path.write_text(text)
    print(f"wrote {path.relative_to(REPOSITORY)}:\n{text.rstrip()}")


def answer(command: str) -> None:
    """Print how to call what was deployed."""
    print(f"\nIt answers. Try:\n\n  {command}\n")


def main() -> None:
    """Run one of the four."""
    targets = {"cloud-run": cloud_run, "gke": gke, "pause": pause, "teardown": teardown}
    if len(sys.argv) != 2 or sys.argv[1] not in targets:
        sys.exit(f"usage: python -m scripts.deploy {'|'.join(targets)}")
    targets[sys.argv[1]]()


if __name__ == "__main__":
    main()
