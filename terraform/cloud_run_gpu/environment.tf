# The service's environment variables, from the module that both platforms share.

locals {
  cache_path = "/cache"
}

module "settings" {
  source = "../modules/settings"

  bundle_bucket_name    = var.bundle_bucket_name
  bundle_target         = lookup(local.bundle_targets, var.gpu_type, null)
  cache_path            = local.cache_path
  catalogue_prefix      = var.catalogue_prefix
  drain_s               = 7 # Cloud Run kills 10 s after SIGTERM
  dtype                 = var.dtype
  env                   = var.env
  image                 = var.image
  key_file_secret       = var.key_file_secret
  limits                = { request_timeout_s = 3600, slots = 500 } # of Cloud Run: seconds of a request; half its concurrency
  max_cached_models     = var.max_cached_models
  max_model_len         = var.max_model_len
  model_bucket_name     = var.model_bucket_name
  model_cache           = var.model_cache
  model_name            = var.model_name
  model_uri             = var.model_uri
  models                = var.models
  models_config_uri     = var.models_config_uri
  notification_channels = var.notification_channels
  prewarm_account_email = var.prewarm_account_email
  prewarm_image         = var.prewarm_image
  project_id            = var.project_id
  region                = var.region
  request_timeout_s     = var.request_timeout_s
  secret_env            = var.secret_env
  serve_account_email   = var.serve_account_email
  service_name          = var.service_name
  slots                 = var.slots
  startup_budget_s      = local.startup_budget_s
}
