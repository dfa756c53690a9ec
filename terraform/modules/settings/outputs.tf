output "bundle_command" {
  description = "Compiles the bundle in Cloud Build, on a machine without the accelerator; null where that cannot be."
  value       = local.bundle_is_built ? local.bundle_command : null
}

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

output "models" {
  description = "What is served, in words: the address of the model, of the folder of models, or of the file that describes them."
  value       = local.has_catalogue ? (var.catalogue_prefix == null ? var.models_config_uri : local.folder) : var.model_uri
}

output "prewarm_args" {
  description = "The arguments of the prewarm job: the model, or all of a catalogue."
  value       = local.prewarm_args
}

output "prewarm_env" {
  description = "The environment of the prewarm job: the same, so that bundles fit, without what it has no volume for."
  value       = local.prewarm_env
}

output "prewarm_secret_env" {
  description = "The keys of the prewarm job: the one that signs bundles, if there is one."
  value       = { for name, secret in var.secret_env : name => secret if name == "BUNDLE_SIGNING_KEY" }
}
