locals {
  shared = {
    bundle_bucket_name    = google_storage_bucket.bundles.name
    model_bucket_name     = google_storage_bucket.models.name
    network               = google_compute_network.main.name
    prewarm_account_email = local.emails["prewarm"]
    project_id            = var.project_id
    region                = var.region
    serve_account_email   = local.emails["serve"]
    subnetwork            = google_compute_subnetwork.main.name
  }
}

output "build_command" {
  description = "Builds, tests and deploys with Cloud Build once the cloud_run_gpu root is applied."
  value = join(" ", [
    "gcloud builds submit --config=cloudbuild.yaml --project=${var.project_id} --region=${var.region}",
    "--service-account=projects/${var.project_id}/serviceAccounts/${local.emails["deploy"]}",
    "--gcs-source-staging-dir=gs://${google_storage_bucket.build_sources.name}/source",
    "--substitutions=_REGION=${var.region},_REPOSITORY=${google_artifact_registry_repository.main.repository_id}",
  ])
}

output "cloud_run_tfvars" {
  description = "Input of the cloud_run_gpu root: write it to its foundation.auto.tfvars."
  value = join("", [
    for name, value in merge(local.shared, { deploy_account_email = local.emails["deploy"] }) : format("%-21s = %q\n", name, value)
  ])
}

output "gke_tfvars" {
  description = "Input of the gke_tpu root: write it to its foundation.auto.tfvars."
  value = join("", [
    for name, value in merge(local.shared, { node_account_email = local.emails["node"] }) : format("%-21s = %q\n", name, value)
  ])
}

output "image_prefix" {
  description = "Images are IMAGE_PREFIX/levserve:TAG."
  value       = local.image_prefix
}

output "model_upload_command" {
  description = "Uploads a checkpoint; replace MODEL by its folder."
  value       = "gcloud storage cp MODEL gs://${google_storage_bucket.models.name}/ --recursive"
}
