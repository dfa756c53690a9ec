# The service's settings as environment variables, for either platform.

terraform {
  required_version = ">= 1.11"
}

locals {
  # One model, or a catalogue of models that requests load.
  has_catalogue = var.catalogue_prefix != null || var.models_config_uri != null
  folder        = join("/", compact(["gs://${var.model_bucket_name}", var.catalogue_prefix]))

  streams     = var.model_cache == "none"
  concurrency = 2 * var.slots # as many requests wait as run
  key_file    = { folder = "/secrets", name = "api_keys.yaml" }

  settings_env = {
    BUNDLE_URI              = "gs://${var.bundle_bucket_name}/${var.service_name}"
    DRAIN_SECONDS           = tostring(var.drain_s)
    DTYPE                   = var.dtype
    GCS_BUCKET              = var.catalogue_prefix == null ? null : var.model_bucket_name
    GCS_MODEL_PREFIX        = var.catalogue_prefix == "" ? null : var.catalogue_prefix
    GOOGLE_CLOUD_PROJECT    = var.project_id
    LOCAL_MODEL_CACHE       = local.streams ? null : var.cache_path
    LOG_FORMAT              = "json"
    MAX_CACHED_CHECKPOINTS  = tostring(local.has_catalogue ? coalesce(var.max_cached_models, 2) : 1)
    MAX_CACHED_MODELS       = var.max_cached_models == null ? null : tostring(var.max_cached_models)
    MAX_CONCURRENT_REQUESTS = tostring(local.concurrency)
    MAX_MODEL_LEN           = var.max_model_len == null ? null : tostring(var.max_model_len)
    MAX_NUM_SEQS            = tostring(var.slots)
    MODELS                  = length(var.models) == 0 ? null : join(",", var.models)
    MODELS_CONFIG           = var.models_config_uri
    MODEL_NAME              = var.model_name
    MODEL_STREAM            = local.streams ? "true" : "false"
    MODEL_URI               = var.model_uri
    PULL_TIMEOUT            = tostring(floor(var.startup_budget_s * 5 / 6)) # fail with a message before the probe times out without one
    REQUEST_TIMEOUT         = tostring(var.request_timeout_s)
  }

  file_env = var.key_file_secret == null ? {} : { API_KEY_FILE = "${local.key_file.folder}/${local.key_file.name}" }

  env = { for name, value in merge(local.settings_env, local.file_env, var.env) : name => value if value != null }

  prewarm_args = local.has_catalogue ? ["prewarm", "--all"] : ["prewarm", var.model_uri]
  prewarm_env  = { for name, value in local.env : name => value if !contains(["API_KEY_FILE", "LOCAL_MODEL_CACHE"], name) }

  # A key that signs bundles is read by the prewarm job alone.
  bundle_is_built = var.bundle_target != null && !contains(keys(var.secret_env), "BUNDLE_SIGNING_KEY")
  bundle_command = join(" ", [
    "gcloud builds submit --no-source --config=cloudbuild.bundle.yaml --project=${var.project_id} --region=${var.region}",
    "--service-account=projects/${var.project_id}/serviceAccounts/${var.prewarm_account_email}",
    join(",", [
      "--substitutions=_IMAGE=${coalesce(var.prewarm_image, var.image)}",
      "_TARGET=${coalesce(var.bundle_target, "none")}",
      "_FLAGS=${local.has_catalogue ? "--all" : ""}",
      "_SETTINGS=${base64encode(jsonencode({ for name, value in local.prewarm_env : lower(name) => value }))}",
    ]),
  ])
}
