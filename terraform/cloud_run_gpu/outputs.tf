locals {
  key_secret = module.settings.key_secret
  # The first key comes through a pipe, so that neither a process list nor a shell history shows it.
  key_command = local.key_secret == null ? "" : "gcloud secrets versions access latest --secret=${local.key_secret} --project=${var.project_id} | cut -d, -f1 | "
  smoke_flags = compact([
    var.public_access_enabled ? "" : "--identity-token auto",
    local.key_secret == null ? "" : "--api-key @/dev/stdin",
    "--timeout ${local.startup_budget_s}",
  ])
}

output "batch_command" {
  description = "Answers the batch, or what is left of it; null without one. Append --args for another input and output."
  value       = var.batch == null ? null : "gcloud run jobs execute ${google_cloud_run_v2_job.batch[0].name} --region=${var.region} --project=${var.project_id} --wait"
}

output "bundle_command" {
  description = "Compiles the bundle in Cloud Build, without a GPU; the prewarm job makes a better one. Null without a GPU, and where bundles are signed."
  value       = module.settings.bundle_command
}

output "logs_command" {
  description = "Shows the last log lines of the service."
  value       = "gcloud run services logs read ${var.service_name} --region=${var.region} --project=${var.project_id} --limit=100"
}

output "prewarm_command" {
  description = "Compiles and writes the bundle again, for example after a new image."
  value       = "gcloud run jobs execute ${google_cloud_run_v2_job.prewarm.name} --region=${var.region} --project=${var.project_id} --wait"
}

output "rollback_command" {
  description = "Gives all traffic to an earlier revision; `gcloud run revisions list` names them."
  value       = "gcloud run services update-traffic ${var.service_name} --region=${var.region} --project=${var.project_id} --to-revisions=REVISION=100"
}

output "smoke_command" {
  description = "Tests the deployed service from outside, and waits for a cold start."
  value       = "${local.key_command}levserve smoke ${google_cloud_run_v2_service.main.uri} ${join(" ", local.smoke_flags)}"
}

output "url" {
  description = "The service's address; the OpenAI SDK takes it with /v1 at the end."
  value       = google_cloud_run_v2_service.main.uri
}
