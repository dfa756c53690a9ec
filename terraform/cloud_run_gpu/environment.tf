# Every environment variable that this root sets; a test compares the names with service/settings.py.

locals {
  pull_timeout_s = floor(local.startup_budget_s * 5 / 6) # fail with a message before the probe times out without one
  cache_path     = "/cache"

  settings_env = {
    BUNDLE_URI              = "gs://${var.bundle_bucket_name}/${var.service_name}"
    DRAIN_SECONDS           = "7" # Cloud Run kills 10 s after SIGTERM
    DTYPE                   = var.dtype
    GOOGLE_CLOUD_PROJECT    = var.project_id
    LOCAL_MODEL_CACHE       = var.model_cache == "none" ? null : local.cache_path
    LOG_FORMAT              = "json"
    MAX_CACHED_MODELS       = "1"
    MAX_CONCURRENT_REQUESTS = tostring(local.concurrency)
    MAX_MODEL_LEN           = var.max_model_len == null ? null : tostring(var.max_model_len)
    MAX_NUM_SEQS            = tostring(var.slots)
    MODEL_NAME              = var.model_name
    MODEL_STREAM            = var.model_cache == "none" ? "true" : "false"
    MODEL_URI               = var.model_uri
    PULL_TIMEOUT            = tostring(local.pull_timeout_s)
    REQUEST_TIMEOUT         = tostring(var.request_timeout_s)
  }

  env = { for name, value in merge(local.settings_env, var.env) : name => value if value != null }
}
