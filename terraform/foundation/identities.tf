# One service account per role, with the least privilege for it.

locals {
  identities = {
    serve   = "Runs the service: reads checkpoints and bundles, writes metrics and the sidecar's log."
    import  = "Copies checkpoints from the Hub: writes models, and reads nothing else."
    prewarm = "Compiles: reads checkpoints, and is the only one to write bundles."
    deploy  = "Cloud Build: pushes images, runs the prewarm job, deploys revisions."
    node    = "GKE nodes: pull images, write logs and metrics."
  }
  # Known before the accounts exist, so that a plan shows the members of each grant.
  emails = { for key, account in google_service_account.main : key => "${account.account_id}@${var.project_id}.iam.gserviceaccount.com" }
  project_roles = {
    "serve/logs"     = { identity = "serve", role = "roles/logging.logWriter" }
    "serve/metrics"  = { identity = "serve", role = "roles/monitoring.metricWriter" }
    "prewarm/logs"   = { identity = "prewarm", role = "roles/logging.logWriter" } # as a build
    "deploy/run"     = { identity = "deploy", role = "roles/run.viewer" }         # it may change what cloud_run_gpu grants it
    "deploy/logs"    = { identity = "deploy", role = "roles/logging.logWriter" }
    "node/node"      = { identity = "node", role = "roles/container.defaultNodeServiceAccount" }
    "node/artifacts" = { identity = "node", role = "roles/artifactregistry.reader" }
  }
}

resource "google_service_account" "main" {
  for_each = local.identities

  project      = var.project_id
  account_id   = "${var.name}-${each.key}"
  display_name = "${var.name} ${each.key}"
  description  = each.value

  depends_on = [google_project_service.main]
}

resource "google_project_iam_member" "main" {
  for_each = local.project_roles

  project = var.project_id
  role    = each.value.role
  member  = "serviceAccount:${local.emails[each.value.identity]}"
}

# A deployment sets the identity of the revision and of the job.
resource "google_service_account_iam_member" "deploy_acts_as" {
  for_each = toset(["serve", "prewarm"])

  service_account_id = google_service_account.main[each.key].name
  role               = "roles/iam.serviceAccountUser"
  member             = "serviceAccount:${local.emails["deploy"]}"
}

# For the ID token of the smoke test.
resource "google_service_account_iam_member" "deploy_makes_its_own_id_token" {
  service_account_id = google_service_account.main["deploy"].name
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = "serviceAccount:${local.emails["deploy"]}"
}
