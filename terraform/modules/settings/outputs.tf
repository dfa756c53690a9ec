output "concurrency" {
  description = "Requests that an instance accepts: as many wait as run."
  value       = local.concurrency
}

output "env" {
  description = "The environment of the service."
  value       = local.env
}

output "key_file" {
  description = "The folder and the name of the file of keys; null without one."
  value       = var.key_file_secret == null ? null : local.key_file
}

output "key_secret" {
  description = "The secret of API_KEY, or null if the service requires no key."
  value       = lookup(var.secret_env, "API_KEY", null)
}

output "prewarm_env" {
  description = "The environment of the prewarm job: the same, so that bundles fit, without what it has no volume for."
  value       = { for name, value in local.env : name => value if !contains(["API_KEY_FILE", "LOCAL_MODEL_CACHE"], name) }
}

output "prewarm_secret_env" {
  description = "The keys of the prewarm job: the one that signs bundles, if there is one."
  value       = { for name, secret in var.secret_env : name => secret if name == "BUNDLE_SIGNING_KEY" }
}
