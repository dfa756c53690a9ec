output "publish_account" {
  description = "PUBLISH_SERVICE_ACCOUNT of the workflow release."
  value       = google_service_account.github["publish"].email
}

output "smoke_account" {
  description = "SMOKE_SERVICE_ACCOUNT of the workflow smoke; make \"serviceAccount:EMAIL\" one of the service's invokers."
  value       = google_service_account.github["smoke"].email
}

output "workload_identity_provider" {
  description = "WORKLOAD_IDENTITY_PROVIDER of both workflows."
  value       = google_iam_workload_identity_pool_provider.github.name
}
