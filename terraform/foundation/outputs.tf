locals {
  # Optional in the roots that have alerts.
  alert_lines = [for channel in google_monitoring_notification_channel.email : format("%-21s = [%q]\n", "notification_channels", channel.id)]
  shared = {
    bundle_bucket_name    = local.bundles
    log_metric_prefix     = var.name
    model_bucket_name     = local.models
    network               = local.network
    prewarm_account_email = local.emails["prewarm"]
    project_id            = var.project_id
    region                = var.region
    serve_account_email   = local.emails["serve"]
    subnetwork            = local.subnetwork
  }
}

output "build_command" {
  description = "Builds, tests and deploys with Cloud Build once the cloud_run_gpu root is applied."
  value = join(" ", [
    "gcloud builds submit --config=cloudbuild.yaml --project=${var.project_id} --region=${var.region}",
    "--service-account=projects/${var.project_id}/serviceAccounts/${local.emails["deploy"]}",
    "--gcs-source-staging-dir=gs://${google_storage_bucket.build_sources.name}/source",
    "--substitutions=_REGION=${var.region},_REPOSITORY=${local.repository}",
  ])
}

output "cloud_run_tfvars" {
  description = "Input of the cloud_run_gpu root: write it to its foundation.auto.tfvars."
  value = join("", [
    for name, value in merge(local.shared, { deploy_account_email = local.emails["deploy"] }) : format("%-21s = %q\n", name, value)
  ], local.alert_lines)
}

output "emails" {
  description = "The service account of each role: serve, import, prewarm, deploy, node."
  value       = local.emails
}

output "gke_cluster_tfvars" {
  description = "Input of the gke_cluster root: write it to its foundation.auto.tfvars."
  value = join("", [
    for name in ["network", "project_id", "region", "subnetwork"] : format("%-21s = %q\n", name, local.shared[name])
    ], [format("%-21s = %q\n", "node_account_email", local.emails["node"])
  ])
}

output "gke_tpu_tfvars" {
  description = "Input of the gke_tpu root: write it to its foundation.auto.tfvars."
  value = join("", [
    for name, value in merge(local.shared, { node_account_email = local.emails["node"] }) : format("%-21s = %q\n", name, value) if !contains(["network", "subnetwork"], name)
  ], local.alert_lines)
}

output "image_prefix" {
  description = "Images are IMAGE_PREFIX/levserve-ACCELERATOR:TAG and IMAGE_PREFIX/levserve-prewarm-ACCELERATOR:TAG."
  value       = local.image_prefix
}

output "model_upload_command" {
  description = "Uploads a checkpoint; replace MODEL by its folder."
  value       = "gcloud storage cp MODEL gs://${local.models}/ --recursive"
}

output "shared" {
  description = "What the other roots take as variables, for use as a module."
  value       = local.shared
}
