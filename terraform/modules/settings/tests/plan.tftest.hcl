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

run "one_model_is_no_catalogue" {
  command = plan

  assert {
    condition     = output.env["MODEL_URI"] == "gs://my-project-models/my-8b" && length(setintersection(keys(output.env), ["GCS_BUCKET", "GCS_MODEL_PREFIX", "MAX_CACHED_MODELS", "MODELS", "MODELS_CONFIG"])) == 0
    error_message = "A service of one model must name it and nothing else."
  }

  assert {
    condition     = output.bundle_command == null && jsonencode(output.prewarm_args) == jsonencode(["prewarm", "gs://my-project-models/my-8b"]) && output.models == "gs://my-project-models/my-8b"
    error_message = "The job must compile for the model that is served."
  }
}

run "the_folders_of_a_folder_are_a_catalogue" {
  command = plan
  variables {
    model_uri         = null
    catalogue_prefix  = "chat"
    models_config_uri = "gs://my-project-models/chat/models.yaml"
    max_cached_models = 3
  }

  assert {
    condition     = output.env["GCS_BUCKET"] == "my-project-models" && output.env["GCS_MODEL_PREFIX"] == "chat" && output.env["MODELS_CONFIG"] == "gs://my-project-models/chat/models.yaml"
    error_message = "The service must list the folder and read the file."
  }

  assert {
    condition     = !contains(keys(output.env), "MODEL_URI") && !contains(keys(output.env), "MODELS")
    error_message = "The service refuses a model beside a catalogue."
  }

  assert {
    condition     = output.env["MAX_CACHED_MODELS"] == "3" && output.env["MAX_CACHED_CHECKPOINTS"] == "3"
    error_message = "As many checkpoints must stay on the disk as models in memory."
  }

  assert {
    condition     = jsonencode(output.prewarm_args) == jsonencode(["prewarm", "--all"]) && output.prewarm_env["GCS_BUCKET"] == "my-project-models" && output.models == "gs://my-project-models/chat"
    error_message = "The job must compile for every model of the catalogue."
  }
}

run "a_whole_bucket_is_a_catalogue" {
  command = plan
  variables {
    model_uri        = null
    catalogue_prefix = ""
  }

  assert {
    condition     = output.env["GCS_BUCKET"] == "my-project-models" && !contains(keys(output.env), "GCS_MODEL_PREFIX") && output.models == "gs://my-project-models"
    error_message = "Without a folder the bucket itself is listed."
  }

  assert {
    condition     = !contains(keys(output.env), "MAX_CACHED_MODELS") && output.env["MAX_CACHED_CHECKPOINTS"] == "2"
    error_message = "The service's own number of models must hold."
  }
}

run "a_bundle_is_compiled_with_the_settings_of_the_service" {
  command = plan
  variables {
    bundle_target = "l4"
    model_cache   = "disk"
    prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:1.0"
  }

  assert {
    condition     = strcontains(output.bundle_command, "_IMAGE=us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:1.0,_TARGET=l4,_FLAGS=,_SETTINGS=")
    error_message = "Cloud Build must compile for the service's machine, in the image of the prewarm job."
  }

  assert {
    condition     = jsondecode(base64decode(regex("_SETTINGS=(.*)$", output.bundle_command)[0])) == { for name, value in output.prewarm_env : lower(name) => value }
    error_message = "Cloud Build must compile with the settings of the prewarm job."
  }

  assert {
    condition     = strcontains(output.bundle_command, "--service-account=projects/my-project/serviceAccounts/levserve-prewarm@my-project.iam.gserviceaccount.com ")
    error_message = "Only the prewarm identity may write bundles."
  }
}

run "a_signed_bundle_is_compiled_by_the_job_alone" {
  command = plan
  variables {
    bundle_target = "l4"
    secret_env    = { BUNDLE_SIGNING_KEY = "levserve-bundle-key" }
  }

  assert {
    condition     = output.bundle_command == null
    error_message = "A build that has no key must not make bundles that no start takes."
  }
}

run "described_models_alone_are_a_catalogue" {
  command = plan
  variables {
    model_uri         = null
    models_config_uri = "gs://my-project-models/models.yaml"
    models            = ["my-8b", "my-1b"]
  }

  assert {
    condition     = output.env["MODELS"] == "my-8b,my-1b" && !contains(keys(output.env), "GCS_BUCKET") && output.models == "gs://my-project-models/models.yaml"
    error_message = "Only described models may be served, and those of models at once."
  }
}
