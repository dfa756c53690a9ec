locals {
  # The first key stays in the pod and comes through a pipe, so that no process list shows it.
  key_command = local.key_secret == null ? "" : "printf %s \"$${API_KEY%%,*}\" | "
  smoke_flags = "--timeout ${var.startup_budget_s}${local.key_secret == null ? "" : " --api-key @/dev/stdin"}"
  urls = {
    external = "https://${coalesce(var.hostname, "-")}"
    internal = "http://${var.service_name}.${local.namespace}.svc.cluster.local"
    none     = "http://${var.service_name}.${local.namespace}.svc.cluster.local"
  }
}

output "bundle_command" {
  description = "Compiles the bundle in Cloud Build, without a TPU. For the first deployment, before there is a cluster: `terraform apply -target=terraform_data.bundle` makes this output alone. Null on a 7x, and where bundles are signed."
  value       = terraform_data.bundle.input
}

output "gateway_address" {
  description = "Where the external gateway's DNS name must point, or the command that prints the internal gateway's address."
  value = (var.gateway == "external" ? one(google_compute_global_address.gateway[*].address)
  : "kubectl get gateway ${var.service_name} --namespace=${local.namespace} --output=jsonpath={.status.addresses[0].value}")
}

output "rollback_command" {
  description = "Rolls back to the pods before the last change; put the old image back in the tfvars too."
  value       = "kubectl rollout undo deployment/${var.service_name} --namespace=${local.namespace}"
}

output "smoke_command" {
  description = "Tests the service: from outside if that is possible (with the key in API_KEY), otherwise from its own pod."
  value = (var.gateway == "external" ? "${local.key_command}levserve smoke ${local.urls.external} ${local.smoke_flags}"
  : "kubectl exec deployment/${var.service_name} --namespace=${local.namespace} -- bash -c '${local.key_command}levserve smoke ${local.urls[var.gateway]} ${local.smoke_flags}'")
}

output "url" {
  description = "The service's address; the OpenAI SDK takes it with /v1 at the end. Without an external gateway it is valid inside the cluster only."
  value       = local.urls[var.gateway]
}
