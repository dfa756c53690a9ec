"""Stand-ins for gcloud, terraform, kubectl, docker and levserve that know what exists in a new project.

Each command is recorded and refused, as the platform would, if it names an API, identity, bucket, repository, image,
network, quota or file that no earlier command made.
"""

import base64
import copy
import json
import re
import socketserver
import threading
from pathlib import Path

NEW_PROJECT = {
    "apis": ["storage", "logging", "monitoring"],  # on in each new project
    "buckets": {}, "accounts": [], "networks": {}, "repositories": [], "images": [], "secrets": [], "grants": [],
    "jobs": {}, "services": {}, "clusters": [], "contexts": [], "namespaces": [], "kube_secrets": [], "agents": [],
    "initialized": [], "applied": {}, "containers": [], "seen_quotas": [], "logins": [], "components": [],
    "bundles": [], "calls": [],
}  # fmt: skip
VALUED = ("--tag", "--publish", "--env", "--build-arg", "--target")  # of docker, with the value as the next word


class Refused(Exception):
    """What the platform would answer."""


class World:
    """What exists, and what each command needs of it."""

    def __init__(self, state: dict, folder: Path, variables: dict[str, str]) -> None:
        self.state, self.folder, self.environment = state, folder, variables

    def need(self, kind: str, name: str | None) -> None:
        """Refuse a command that names what does not exist."""
        if name not in self.state[kind]:
            raise Refused(f"{name} is not among the {kind}: {sorted(self.state[kind])}")

    def api(self, *names: str) -> None:
        """Refuse a command whose API is off."""
        for name in names:
            self.need("apis", name)

    def add(self, kind: str, name: str) -> None:
        """Make something."""
        if name not in self.state[kind]:
            self.state[kind].append(name)

    def has_grant(self, member: str, role: str, on: str) -> bool:
        """Return whether a member has a role on a resource, or on the project."""
        return [member, role, on] in self.state["grants"] or [member, role, "project"] in self.state["grants"]

    def need_grant(self, member: str, role: str, on: str) -> None:
        """Refuse what a member may not do."""
        if not self.has_grant(member, role, on):
            raise Refused(f"{member} lacks {role} on {on}")

    # gcloud

    def gcloud(self, words: list[str], flags: dict[str, str]) -> str | None:
        """Run a gcloud command."""
        words = [word for word in words if word not in ("alpha", "beta")]
        project = flags.get("project", "my-project")
        match words:
            case ["config", "set", "project", _]:
                return None
            case ["config", "get" | "get-value", "project"]:
                return "my-project"
            case ["config", "get" | "get-value", "account"]:
                return "me@example.com"
            case ["auth", "login"] | ["auth", "application-default", "login"]:
                self.add("logins", "user")
                if "application-default" in words or "update-adc" in flags:
                    self.add("logins", "adc")
            case ["auth", "print-identity-token"]:
                return "t0ken"
            case ["components", "install", *names]:
                for name in names:
                    self.add("components", name)
            case ["services", "enable", *names]:
                for name in names:
                    self.add("apis", name.removesuffix(".googleapis.com"))
            case ["services", "identity", "create"]:
                self.add("agents", flags["service"])
            case ["quotas", "info", "list" | "describe", *_]:
                self.add("seen_quotas", flags["service"])
                return "[]" if "json" in flags.get("format", "") else ""
            case ["compute", "regions", "describe", _]:
                self.api("compute")
                self.add("seen_quotas", "compute.googleapis.com")
            case ["storage", *rest]:
                return self.storage(rest, flags)
            case ["iam", "service-accounts", "create", name]:
                self.api("iam")
                self.add("accounts", f"{name}@{project}.iam.gserviceaccount.com")
            case ["iam", "service-accounts", "add-iam-policy-binding", account]:
                self.need("accounts", account)
                self.bind(flags, account)
            case ["projects", "add-iam-policy-binding", _]:
                self.bind(flags, "project")
            case ["compute", "networks", "create", name]:
                self.api("compute")
                self.state["networks"][name] = []
            case ["compute", "networks", "subnets", "create", name]:
                self.need("networks", flags["network"])
                self.state["networks"][flags["network"]].append(name)
            case ["artifacts", "repositories", "create", name]:
                self.api("artifactregistry")
                self.add("repositories", name)
            case ["artifacts", "docker", "tags", "list", image]:
                if not any(made.rpartition(":")[0] == image for made in self.state["images"]):
                    raise Refused(f"no image {image}")
                return "first"
            case ["builds", "submit"]:
                self.build(flags)
            case ["run", *rest]:
                return self.run(rest, flags)
            case ["secrets", *rest]:
                return self.secrets(rest, flags)
            case ["container", "clusters", "get-credentials", name]:
                self.need("clusters", name)
                self.need("components", "gke-gcloud-auth-plugin")
                self.add("contexts", f"gke_{project}_{flags['location']}_{name}")
            case _:
                raise Refused(f"the stand-in does not know gcloud {' '.join(words)}")
        return None

    def bind(self, flags: dict[str, str], on: str) -> None:
        """Grant a role to a member that exists."""
        member = flags["member"]
        if member.startswith("serviceAccount:"):
            self.need("accounts", member.removeprefix("serviceAccount:"))
        self.state["grants"].append([member.partition(":")[2], flags["role"], on])

    def storage(self, words: list[str], flags: dict[str, str]) -> str | None:
        """Run `gcloud storage`."""
        self.api("storage")
        match words:
            case ["buckets", "create", url]:
                self.state["buckets"][url.removeprefix("gs://")] = []
            case ["buckets", "add-iam-policy-binding", url]:
                self.need("buckets", url.removeprefix("gs://"))
                self.bind(flags, url.removeprefix("gs://"))
            case ["buckets", "remove-iam-policy-binding", url]:
                self.need("buckets", url.removeprefix("gs://"))
            case ["cp" | "rsync", source, url]:
                bucket, _, prefix = url.removeprefix("gs://").partition("/")
                self.need("buckets", bucket)
                if not (self.folder / source).exists():
                    raise Refused(f"there is no {source}")
                self.state["buckets"][bucket].append(prefix.strip("/") or Path(source).name)
            case ["ls", url]:
                self.need("buckets", url.removeprefix("gs://").partition("/")[0])
            case ["rm", url]:
                self.need("buckets", url.removeprefix("gs://").partition("/")[0])
        return None

    def build(self, flags: dict[str, str]) -> None:
        """Run the build of cloudbuild.yaml."""
        self.api("cloudbuild", "artifactregistry")
        values = dict(pair.split("=", 1) for pair in flags["substitutions"].split(","))
        if not (self.folder / flags["config"]).is_file():
            raise Refused(f"there is no {flags['config']}")
        account = flags["service-account"].rpartition("/")[2]
        self.need("accounts", account)
        if "_TARGET" in values:
            self.build_bundle(account, values)
            return
        if staging := flags.get("gcs-source-staging-dir"):
            self.need("buckets", staging.removeprefix("gs://").partition("/")[0])
        self.need("repositories", values.get("_REPOSITORY", "levserve"))
        if not self.has_grant(account, "roles/cloudbuild.builds.builder", "project"):
            for role in ("roles/artifactregistry.writer", "roles/logging.logWriter"):
                self.need_grant(account, role, "project")
        prefix = f"{values['_REGION']}-docker.pkg.dev/my-project/{values.get('_REPOSITORY', 'levserve')}"
        accelerator = values.get("_ACCELERATOR", "cuda12")
        for name in ("levserve", "levserve-prewarm"):
            for tag in ("newest", values.get("_TAG", "b1")):
                self.add("images", f"{prefix}/{name}-{accelerator}:{tag}")
        service = values.get("_SERVICE", "levserve")
        if service:
            self.need("services", service)
            self.need("jobs", f"{service}-prewarm")
            self.need_grant(account, "roles/run.developer", "project")
            for runner in (
                self.state["services"][service]["account"],
                self.state["jobs"][f"{service}-prewarm"]["account"],
            ):
                self.need_grant(account, "roles/iam.serviceAccountUser", runner)
            self.need_grant(account, "roles/iam.serviceAccountOpenIdTokenCreator", account)
            self.api("iamcredentials")  # of the ID token
            self.need_grant(account, "roles/run.invoker", service)
            if secret := values.get("_API_KEY_SECRET"):
                self.need_grant(account, "roles/secretmanager.secretAccessor", secret)

    def build_bundle(self, account: str, values: dict[str, str]) -> None:
        """Run the build of cloudbuild.bundle.yaml."""
        self.need("images", values["_IMAGE"])
        for role in ("roles/artifactregistry.reader", "roles/logging.logWriter"):
            self.need_grant(account, role, "project")
        settings = json.loads(base64.b64decode(values["_SETTINGS"]))
        self.reads_models({"account": account, "env": {"MODEL_URI": settings["model_uri"]}})
        self.need_grant(account, "roles/storage.objectUser", bucket_of(settings["bundle_uri"]))
        self.state["bundles"].append([settings["bundle_uri"], values["_TARGET"]])

    def run(self, words: list[str], flags: dict[str, str]) -> str | None:
        """Run `gcloud run`."""
        if "source" not in flags:
            self.api("run")
        match words:
            case ["deploy", name]:
                if "source" in flags:  # asks to enable its APIs, and makes its own repository
                    for api in ("run", "cloudbuild", "artifactregistry"):
                        self.add("apis", api)
                    if not (self.folder / flags["source"] / "Dockerfile").is_file():
                        raise Refused("there is no Dockerfile")
                    account = "default"
                else:
                    account = self.runnable(flags)
                self.state["services"][name] = {"account": account, "env": self.settings(flags), "protected": False}
            case ["jobs", "deploy", name] if flags.get("args", "").startswith("import,"):
                self.import_job(name, flags)
            case ["jobs", "deploy" | "create", name]:
                self.state["jobs"][name] = {"account": self.runnable(flags), "env": self.settings(flags)}
            case ["jobs", "execute", name]:
                self.need("jobs", name)
                job = self.state["jobs"][name]
                self.reads_models(job)
                self.need_grant(job["account"], "roles/storage.objectUser", bucket_of(job["env"]["BUNDLE_URI"]))
            case ["services", "describe", name]:
                self.need("services", name)
                return "https://levserve-abc-uc.a.run.app"
            case ["services", "update" | "update-traffic", name]:
                self.need("services", name)
                for secret in re.findall(r"=([\w-]+):latest", flags.get("update-secrets", "")):
                    self.need("secrets", secret)
                    self.need_grant(
                        self.state["services"][name]["account"], "roles/secretmanager.secretAccessor", secret
                    )
            case ["services", "add-iam-policy-binding", name]:
                self.need("services", name)
                self.bind(flags, name)
            case ["services", "delete", name]:
                self.need("services", name)
                del self.state["services"][name]
            case ["services", "logs", "read", name]:
                self.need("services", name)
            case ["revisions", "list"]:
                self.need("services", flags["service"])
            case _:
                raise Refused(f"the stand-in does not know gcloud run {' '.join(words)}")
        return None

    def import_job(self, name: str, flags: dict[str, str]) -> None:
        """Make the job that copies a checkpoint from the Hub, and execute it."""
        _, source, target = flags["args"].split(",")
        if "vpc-egress" in flags:
            raise Refused(f"the subnet has no way to {source}")
        self.need("images", flags["image"])
        self.need("accounts", flags["service-account"])
        self.need_grant(flags["service-account"], "roles/storage.objectUser", bucket_of(target))
        self.state["jobs"][name] = {"account": flags["service-account"], "env": {}}
        if "execute-now" in flags:
            self.state["buckets"][bucket_of(target)].append(target.split("/", 3)[3])

    def runnable(self, flags: dict[str, str]) -> str:
        """Check what a service or a job is deployed with; return its identity."""
        self.need("images", flags["image"])
        self.need("accounts", flags["service-account"])
        self.need("networks", flags["network"])
        if flags["subnet"] not in self.state["networks"][flags["network"]]:
            raise Refused(f"there is no subnet {flags['subnet']} in {flags['network']}")
        if "gpu-type" in flags and "run.googleapis.com" not in self.state["seen_quotas"]:
            raise Refused("the quota of GPUs was not looked at")
        if not (self.folder / flags["env-vars-file"]).is_file():
            raise Refused(f"there is no {flags['env-vars-file']}")
        self.reads_models({"account": flags["service-account"], "env": self.settings(flags)})
        return flags["service-account"]

    def reads_models(self, runner: dict) -> None:
        """Check that a service or a job can read its checkpoint."""
        bucket, _, prefix = runner["env"]["MODEL_URI"].removeprefix("gs://").partition("/")
        self.need("buckets", bucket)
        if prefix not in self.state["buckets"][bucket]:
            raise Refused(f"there is no checkpoint gs://{bucket}/{prefix}")
        self.need_grant(runner["account"], "roles/storage.objectViewer", bucket)

    def settings(self, flags: dict[str, str]) -> dict[str, str]:
        """Return the settings of the file that a deployment names."""
        path = self.folder / flags.get("env-vars-file", "none")
        lines = path.read_text().splitlines() if path.is_file() else []
        return dict(line.replace('"', "").split(": ", 1) for line in lines)

    def secrets(self, words: list[str], flags: dict[str, str]) -> str | None:
        """Run `gcloud secrets`."""
        self.api("secretmanager")
        match words:
            case ["create", name]:
                self.add("secrets", name)
            case ["add-iam-policy-binding", name]:
                self.need("secrets", name)
                self.bind(flags, name)
            case ["versions", "access", "latest"]:
                self.need("secrets", flags["secret"])
                return "k3y"
        return None

    # terraform

    def terraform(self, words: list[str], flags: dict[str, str], values: list[str]) -> str | None:
        """Run a terraform command."""
        folder = self.folder / flags.get("chdir", ".")
        root = folder.name
        if not (folder / "versions.tf").is_file():
            raise Refused(f"there is no root {folder}")
        if words[0] == "init":
            self.add("initialized", root)
            return None
        self.need("initialized", root)
        if words[0] == "output":
            if "json" in flags:
                return '{"applied": true}' if self.state["applied"].get(root) else "{}"
            self.need("applied", root)
            return self.output(root, words[-1])
        if words[0] in ("apply", "destroy"):
            self.need("logins", "adc")
            variables = self.variables(folder, values)
            getattr(self, f"{words[0]}_{root}")(variables, flags)
            self.state["applied"][root] = variables if words[0] == "apply" else {}
        return None

    def variables(self, folder: Path, values: list[str]) -> dict[str, str]:
        """Return the variables of a root, and refuse an apply that lacks one."""
        text = (folder / "variables.tf").read_text()
        blocks = dict(re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL))
        found = {name: m[1] for name, body in blocks.items() if (m := re.search(r'default += "(.*)"', body))}
        for path in [folder / "terraform.tfvars", *sorted(folder.glob("*.auto.tfvars"))]:
            if path.is_file():
                found |= dict(re.findall(r'^(\w+) *= *"?([^"\n#]*?)"? *(?:#.*)?$', path.read_text(), re.MULTILINE))
        found |= dict(value.split("=", 1) for value in values)
        missing = [name for name, body in blocks.items() if name not in found and "default" not in body]
        missing += [
            name for name in ("model_bucket_name", "bundle_bucket_name") if name in blocks and not found.get(name)
        ]
        if missing:
            raise Refused(f"{folder}: no value for {', '.join(missing)}")
        if unknown := [value for value in values if value.split("=")[0] not in blocks]:
            raise Refused(f"{folder}: no variable {unknown}")
        return found

    def apply_foundation(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Make what the foundation makes."""
        self.api("serviceusage", "cloudresourcemanager")
        text = (self.folder / flags["chdir"] / "main.tf").read_text()
        for api in re.findall(r'"(\w+)\.googleapis\.com"', text):
            self.add("apis", api)
        name, project = variables.get("name", "levserve"), variables["project_id"]
        accounts = {
            role: f"{name}-{role}@{project}.iam.gserviceaccount.com"
            for role in ("serve", "import", "prewarm", "deploy", "node")
        }
        for account in accounts.values():
            self.add("accounts", account)
        self.state["networks"].setdefault(name, [f"{name}-{variables['region']}"])
        self.add("repositories", name)
        models, bundles = variables["model_bucket_name"], variables["bundle_bucket_name"]
        for bucket in (models, bundles, f"{project}-{name}-build"):
            self.state["buckets"].setdefault(bucket, [])
        deploy = accounts["deploy"]
        self.state["grants"] += [
            [accounts["serve"], "roles/storage.objectViewer", models],
            [accounts["serve"], "roles/storage.objectViewer", bundles],
            [accounts["import"], "roles/storage.objectUser", models],
            [accounts["prewarm"], "roles/storage.objectViewer", models],
            [accounts["prewarm"], "roles/storage.objectUser", bundles],
            [accounts["prewarm"], "roles/artifactregistry.reader", "project"],
            [accounts["prewarm"], "roles/logging.logWriter", "project"],
            [deploy, "roles/artifactregistry.writer", "project"], [deploy, "roles/logging.logWriter", "project"],
            [deploy, "roles/run.developer", "project"],
            [deploy, "roles/iam.serviceAccountUser", accounts["serve"]],
            [deploy, "roles/iam.serviceAccountUser", accounts["prewarm"]],
            [deploy, "roles/iam.serviceAccountOpenIdTokenCreator", deploy],
        ]  # fmt: skip

    def destroy_foundation(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Refuse to delete data, and what is in use."""
        if self.state["services"] or self.state["clusters"]:
            raise Refused("the network is in use")
        if self.state["applied"]["foundation"].get("data_deletion_enabled") != "true":
            full = [name for name, objects in self.state["buckets"].items() if objects]
            if full:
                raise Refused(f"{full} hold objects")

    def model_of(self, variables: dict[str, str], *images: str) -> None:
        """Check what both platforms need for a model."""
        for name in ("image", *images):
            if variables.get(name):
                self.need("images", variables[name])
        for name in ("serve_account_email", "prewarm_account_email"):
            self.need("accounts", variables[name])
        env = {"MODEL_URI": variables["model_uri"]}
        self.reads_models({"account": variables["serve_account_email"], "env": env})

    def apply_cloud_run_gpu(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Make the job, and unless it alone is the target, the service."""
        self.api("run", "monitoring")
        self.model_of(variables, "prewarm_image")
        if variables["subnetwork"] not in self.state["networks"].get(variables["network"], []):
            raise Refused(f"there is no subnet {variables['subnetwork']}")
        if variables.get("gpu_type", "nvidia-l4") != "none" and "run.googleapis.com" not in self.state["seen_quotas"]:
            raise Refused("the quota of GPUs was not looked at")
        name = variables.get("service_name", "levserve")
        env = {"MODEL_URI": variables["model_uri"], "BUNDLE_URI": f"gs://{variables['bundle_bucket_name']}/{name}"}
        self.state["jobs"][f"{name}-prewarm"] = {"account": variables["prewarm_account_email"], "env": env}
        if "target" in flags:
            return
        if int(variables.get("min_instances", 0)) > 0:
            self.need("agents", "monitoring.googleapis.com")
        protected = variables.get("deletion_protection_enabled", "true") == "true"
        self.state["services"][name] = {"account": variables["serve_account_email"], "env": env, "protected": protected}
        self.state["grants"].append([variables["deploy_account_email"], "roles/run.invoker", name])

    def destroy_cloud_run_gpu(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Delete the service, unless it is protected."""
        name = variables.get("service_name", "levserve")
        if self.state["services"].get(name, {}).get("protected"):
            raise Refused(f"service {name} is protected")
        self.state["services"].pop(name, None)
        self.state["jobs"].pop(f"{name}-prewarm", None)

    def apply_gke_cluster(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Make the cluster."""
        self.api("container", "compute")
        self.need("networks", variables["network"])
        self.need("accounts", variables["node_account_email"])
        self.add("clusters", variables.get("cluster_name", "levserve"))

    def destroy_gke_cluster(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Delete the cluster, unless it is protected or holds a model."""
        if self.state["applied"]["gke_cluster"].get("deletion_protection_enabled") != "false":
            raise Refused("the cluster is protected")
        self.state["clusters"].clear()

    def apply_gke_tpu(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Make the TPUs, the job and the service."""
        if "target" in flags:
            return
        self.api("container", "containerfilesystem")
        self.need("clusters", variables.get("cluster_name", "levserve"))
        self.need("contexts", self.environment.get("KUBE_CTX"))
        if not self.environment.get("KUBE_CONFIG_PATH"):
            raise Refused("the kubernetes provider has no configuration: KUBE_CONFIG_PATH")
        if "compute.googleapis.com" not in self.state["seen_quotas"]:
            raise Refused("the quota of TPUs was not looked at, and is 0 in a new project")
        self.model_of(variables, "prewarm_image")
        self.add("namespaces", variables.get("service_name", "levserve"))

    def destroy_gke_tpu(self, variables: dict[str, str], flags: dict[str, str]) -> None:
        """Delete the model's part of the cluster."""
        self.need("contexts", self.environment.get("KUBE_CTX"))
        self.state["namespaces"].clear()

    def output(self, root: str, name: str) -> str:
        """Return an output of a root, as its outputs.tf makes it."""
        variables = self.state["applied"][root]
        project, region = variables["project_id"], variables.get("region", "us-central1")
        shared = {
            "project_id": project, "region": region, "network": "levserve", "subnetwork": f"levserve-{region}",
            "model_bucket_name": variables.get("model_bucket_name"),
            "bundle_bucket_name": variables.get("bundle_bucket_name"), "log_metric_prefix": "levserve",
        }  # fmt: skip
        shared |= {
            f"{role}_account_email": f"levserve-{role}@{project}.iam.gserviceaccount.com"
            for role in ("serve", "prewarm", "deploy", "node")
        }
        service = variables.get("service_name", "levserve")
        match root, name:
            case "foundation", ("cloud_run_tfvars" | "gke_cluster_tfvars" | "gke_tpu_tfvars"):
                return "".join(f'{key} = "{value}"\n' for key, value in shared.items())
            case "foundation", "build_command":
                account = f"projects/{project}/serviceAccounts/{shared['deploy_account_email']}"
                return (
                    f"gcloud builds submit --config=cloudbuild.yaml --project={project} --region={region} "
                    f"--service-account={account} --gcs-source-staging-dir=gs://{project}-levserve-build/source "
                    f"--substitutions=_REGION={region},_REPOSITORY=levserve"
                )
            case "foundation", "image_prefix":
                return f"{region}-docker.pkg.dev/{project}/levserve"
            case (("cloud_run_gpu" | "gke_tpu"), "bundle_command"):
                settings = {
                    "model_uri": variables["model_uri"],
                    "bundle_uri": f"gs://{shared['bundle_bucket_name']}/{service}",
                }
                account = f"projects/{project}/serviceAccounts/{shared['prewarm_account_email']}"
                target = "l4" if root == "cloud_run_gpu" else "v5e-1"
                return (
                    f"gcloud builds submit --no-source --config=cloudbuild.bundle.yaml --project={project} "
                    f"--region={region} --service-account={account} "
                    f"--substitutions=_IMAGE={variables['prewarm_image']},_TARGET={target},"
                    f"_FLAGS=,_SETTINGS={base64.b64encode(json.dumps(settings).encode()).decode()}"
                )
            case "cloud_run_gpu", "prewarm_command":
                return f"gcloud run jobs execute {service}-prewarm --region={region} --project={project} --wait"
            case "cloud_run_gpu", "smoke_command":
                self.need("services", service)
                return "levserve smoke https://levserve-abc-uc.a.run.app --identity-token auto"
            case "cloud_run_gpu", "url":
                return "https://levserve-abc-uc.a.run.app"
            case "gke_cluster", "kubernetes_context":
                return f"gke_{project}_{region}_{variables.get('cluster_name', 'levserve')}"
            case "gke_cluster", "credentials_command":
                get = "gcloud container clusters get-credentials levserve"
                return f"{get} --location={region} --project={project} --dns-endpoint"
            case "gke_cluster", "adapter_command":
                return "kubectl apply --filename=https://example.com/adapter.yaml"
            case "gke_tpu", "smoke_command":
                return f"kubectl exec deployment/{service} --namespace={service} -- levserve smoke http://{service}"
        raise Refused(f"the stand-in does not know output {name} of {root}")

    # the others

    def kubectl(self, words: list[str], flags: dict[str, str]) -> None:
        """Run a kubectl command."""
        if not self.state["contexts"]:
            raise Refused("kubectl has no cluster")
        if "namespace" in flags:
            self.need("namespaces", flags["namespace"])

    def docker(self, words: list[str], flags: dict[str, str]) -> None:
        """Run a docker command."""
        images = [word for word in words[1:] if word.startswith("levserve")]
        match words[0]:
            case "build":
                self.add("images", flags["tag"])
            case "run":
                self.need("images", images[0])
                self.add("containers", flags.get("name", "unnamed"))
            case "stop" | "rm":
                self.need("containers", words[1])

    def levserve(self, words: list[str], flags: dict[str, str]) -> None:
        """Run `levserve smoke` against what was started, or `levserve import` into a bucket."""
        if words[0] == "import":
            bucket, _, prefix = words[2].removeprefix("gs://").partition("/")
            self.need("buckets", bucket)
            self.need("logins", "adc")
            self.state["buckets"][bucket].append(prefix)
        if words[0] == "smoke" and "--help" not in words:
            if words[1].startswith("http://127.0.0.1") and not self.state["containers"]:
                raise Refused("nothing listens")
            if words[1].startswith("https://") and not self.state["services"]:
                raise Refused("there is no service")


def bucket_of(url: str) -> str:
    """Return the bucket of a gs:// address."""
    return url.removeprefix("gs://").partition("/")[0]


def parsed(command: str, arguments: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return words, flags, and Terraform's `-var` values of a command line."""
    words, flags, values = [], {}, []
    for number, argument in enumerate(arguments):
        if argument == "--" and command == "kubectl":
            break
        if argument.startswith("-"):
            name, _, value = argument.lstrip("-").partition("=")
            if name == "var":
                values.append(value)
            elif not value and command == "docker" and argument in VALUED:
                value = arguments[number + 1]
            flags[name] = value
        elif not (command == "docker" and number and arguments[number - 1] in VALUED):
            words.append(argument)
    return words, flags, values


class Platform(socketserver.ThreadingTCPServer):
    """A world behind a port, which the stand-ins ask; its state lasts as long as a journey."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.state = copy.deepcopy(NEW_PROJECT)
        self.lock = threading.Lock()  # both ends of a pipe run at once
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def run(self, command: str, folder: str, variables: dict[str, str], arguments: list[str]) -> tuple[int, str]:
        """Run one command; record it, and answer as the platform would."""
        line = " ".join([command, *arguments])
        with self.lock:
            self.state["calls"].append(line)
            world = World(self.state, Path(folder), variables)
            words, flags, values = parsed(command, arguments)
            try:
                if command == "terraform":
                    said = world.terraform(words, flags, values)
                else:
                    said = getattr(world, command)(words, flags)
            except Refused as refusal:
                return 1, f"REFUSED {line}: {refusal}\n"
            return 0, "" if said is None else f"{said}\n"


class Answer(socketserver.StreamRequestHandler):
    """One command of a stand-in: its name, folder, two variables and arguments, each ended by a zero byte."""

    server: Platform

    def handle(self) -> None:
        """Read a command and write its exit status and output."""
        number, read = int(self.field()), []
        while len(read) < number:
            read.append(self.field())
        command, folder, context, config, *arguments = read
        status, said = self.server.run(command, folder, {"KUBE_CTX": context, "KUBE_CONFIG_PATH": config}, arguments)
        self.wfile.write(f"{status}\n{said}".encode())

    def field(self) -> str:
        """Read one field."""
        text = b""
        while (byte := self.rfile.read(1)) not in (b"\0", b""):
            text += byte
        return text.decode()


# `cat` empties a pipe that a secret comes through.
STAND_IN = """#!/bin/bash
case "$*" in *"/dev/stdin"*|*"--data-file=-"*) cat > /dev/null ;; esac
exec 3<>"/dev/tcp/127.0.0.1/$WORLD_PORT"
printf '%s\\0' "$(($# + 4))" "${0##*/}" "$PWD" "${KUBE_CTX-}" "${KUBE_CONFIG_PATH-}" "$@" >&3
read -r status <&3
if [ "$status" = 0 ]; then cat <&3; else cat <&3 >&2; fi
exit "$status"
"""
