# The service's settings as environment variables, for either platform.

terraform {
  required_version = ">= 1.11"
}

locals {
  streams     = var.model_cache == "none"
  concurrency = 2 * var.slots # as many requests wait as run
  key_file    = { folder = "/secrets", name = "api_keys.yaml" }

  settings_env = {
    BUNDLE_URI              = "gs://${var.bundle_bucket_name}/${var.service_name}"
    DRAIN_SECONDS           = tostring(var.drain_s)
    DTYPE                   = var.dtype
    GOOGLE_CLOUD_PROJECT    = var.project_id
    LOCAL_MODEL_CACHE       = local.streams ? null : var.cache_path
    LOG_FORMAT              = "json"
    MAX_CACHED_CHECKPOINTS  = "1"
    MAX_CONCURRENT_REQUESTS = tostring(local.concurrency)
    MAX_MODEL_LEN           = var.max_model_len == null ? null : tostring(var.max_model_len)
    MAX_NUM_SEQS            = tostring(var.slots)
    MODEL_NAME              = var.model_name
    MODEL_STREAM            = local.streams ? "true" : "false"
    MODEL_URI               = var.model_uri
    PULL_TIMEOUT            = tostring(floor(var.startup_budget_s * 5 / 6)) # fail with a message before the probe times out without one
    REQUEST_TIMEOUT         = tostring(var.request_timeout_s)
  }

  file_env = var.key_file_secret == null ? {} : { API_KEY_FILE = "${local.key_file.folder}/${local.key_file.name}" }

  env = { for name, value in merge(local.settings_env, local.file_env, var.env) : name => value if value != null }
}
