# The environment that the variables make.

variables {
  bundle_bucket_name    = "my-project-bundles"
  cache_path            = "/cache"
  drain_s               = 7
  dtype                 = "auto"
  env                   = {}
  image                 = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:1.0"
  limits                = { request_timeout_s = 3600, slots = 500 }
  model_bucket_name     = "my-project-models"
  model_cache           = "none"
  model_uri             = "gs://my-project-models/my-8b"
  notification_channels = []
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  project_id            = "my-project"
  region                = "us-central1"
  request_timeout_s     = 300
  secret_env            = {}
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  service_name          = "levserve"
  slots                 = 16
  startup_budget_s      = 1800
}

run "weights_stream_without_a_cache" {
  command = plan

  assert {
    condition     = output.env["MODEL_STREAM"] == "true" && !contains(keys(output.env), "LOCAL_MODEL_CACHE")
    error_message = "Without a cache weights must go straight to the device."
  }

  assert {
    condition     = output.concurrency == 32 && output.env["MAX_CONCURRENT_REQUESTS"] == "32" && output.env["MAX_NUM_SEQS"] == "16"
    error_message = "As many requests wait as run."
  }

  assert {
    condition     = tonumber(output.env["PULL_TIMEOUT"]) == 1500 && output.key_secret == null
    error_message = "A pull that hangs must fail with its own message before the probe gives up."
  }
}

run "a_file_of_keys_is_only_the_services" {
  command = plan
  variables {
    secret_env      = { API_KEY = "levserve-api-key" }
    key_file_secret = "levserve-api-keys"
  }

  assert {
    condition     = output.env["API_KEY_FILE"] == "/secrets/api_keys.yaml" && !contains(keys(output.prewarm_env), "API_KEY_FILE")
    error_message = "The service must read the mounted file, and the prewarm job must need none."
  }
}

run "a_cache_is_only_the_services" {
  command = plan
  variables {
    model_cache = "disk"
    secret_env  = { API_KEY = "levserve-api-key" }
  }

  assert {
    condition     = output.env["LOCAL_MODEL_CACHE"] == "/cache" && !contains(keys(output.prewarm_env), "LOCAL_MODEL_CACHE")
    error_message = "The prewarm job has no volume."
  }

  assert {
    condition     = output.key_secret == "levserve-api-key" && !contains(keys(output.env), "API_KEY")
    error_message = "A key is named, never spelled."
  }
}
