# Every environment variable that this root sets; a test compares the names with service/settings.py.

locals {
  drain_s     = coalesce(var.drain_s, var.capacity == "spot" ? 8 : 30)
  concurrency = 2 * var.slots # as many requests wait as run
  cache_path  = "/cache"

  settings_env = {
    BUNDLE_URI              = "gs://${var.bundle_bucket_name}/${var.service_name}"
    DRAIN_SECONDS           = tostring(local.drain_s)
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
    PULL_TIMEOUT            = tostring(floor(var.startup_budget_s * 5 / 6))
    REQUEST_TIMEOUT         = tostring(var.request_timeout_s)
  }

  env = { for name, value in merge(local.settings_env, var.env) : name => value if value != null }
}
