# Callers of the service, and the keys that it may read. By default only the smoke test of the deploy identity may call.

locals {
  callers = merge(
    { for member in var.invokers : member => member },
    { deploy = "serviceAccount:${var.deploy_account_email}" },
    var.public_access_enabled ? { public = "allUsers" } : {},
    local.has_uptime_check ? { uptime = "serviceAccount:service-${data.google_project.main.number}@gcp-sa-monitoring-notification.iam.gserviceaccount.com" } : {},
  )
}

# A project has Monitoring's service agent, which sends the uptime check, only after
# `gcloud beta services identity create --service=monitoring.googleapis.com`.
data "google_project" "main" {
  project_id = var.project_id
}

resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = local.callers

  project  = var.project_id
  name     = google_cloud_run_v2_service.main.name
  location = var.region
  role     = "roles/run.invoker"
  member   = each.value
}

resource "google_secret_manager_secret_iam_member" "serve_reads_keys" {
  for_each = toset(concat(values(var.secret_env), var.key_file_secret == null ? [] : [var.key_file_secret]))

  project   = var.project_id
  secret_id = each.key
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.serve_account_email}"
}

resource "google_secret_manager_secret_iam_member" "prewarm_reads_keys" {
  for_each = toset(values(module.settings.prewarm_secret_env))

  project   = var.project_id
  secret_id = each.key
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.prewarm_account_email}"
}

# The smoke test of a deployment sends the key.
resource "google_secret_manager_secret_iam_member" "deploy_reads_key" {
  for_each = toset([for name, secret in var.secret_env : secret if name == "API_KEY"])

  project   = var.project_id
  secret_id = each.key
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${var.deploy_account_email}"
}

# A build changes this service and executes this job, and no other of the project.
resource "google_cloud_run_v2_service_iam_member" "deploy_changes" {
  project  = var.project_id
  name     = google_cloud_run_v2_service.main.name
  location = var.region
  role     = "roles/run.developer"
  member   = "serviceAccount:${var.deploy_account_email}"
}

resource "google_cloud_run_v2_job_iam_member" "deploy_executes" {
  project  = var.project_id
  name     = google_cloud_run_v2_job.prewarm.name
  location = var.region
  role     = "roles/run.developer"
  member   = "serviceAccount:${var.deploy_account_email}"
}
