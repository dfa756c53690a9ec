# Variables that are rejected with a message before any plan, for both platforms.

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

run "a_missing_model_bucket_name" {
  command = plan
  variables {
    model_bucket_name = ""
  }
  expect_failures = [var.model_bucket_name]
}

run "a_missing_bundle_bucket_name" {
  command = plan
  variables {
    bundle_bucket_name = ""
  }
  expect_failures = [var.bundle_bucket_name]
}

run "a_model_outside_the_model_bucket" {
  command = plan
  variables {
    model_uri = "gs://elsewhere/my-8b"
  }
  expect_failures = [var.model_uri]
}

run "a_model_from_the_hub" {
  command = plan
  variables {
    model_uri = "hf://org/name"
  }
  expect_failures = [var.model_uri]
}

run "a_key_in_plain_text" {
  command = plan
  variables {
    env = { API_KEY = "not-a-secret-any-more" }
  }
  expect_failures = [var.env]
}

run "a_setting_decided_twice" {
  command = plan
  variables {
    env = { MAX_NUM_SEQS = "64" }
  }
  expect_failures = [var.env]
}

run "a_catalogue_in_env" {
  command = plan
  variables {
    env = { CATALOGUE_URI = "gs://my-project-models/chat" }
  }
  expect_failures = [var.env]
}

run "a_bucket_of_models_in_env" {
  command = plan
  variables {
    env = { GCS_BUCKET = "my-project-models" }
  }
  expect_failures = [var.env]
}

run "several_models_beside_the_one" {
  command = plan
  variables {
    catalogue_prefix = "chat"
  }
  expect_failures = [var.model_uri]
}

run "no_model_at_all" {
  command = plan
  variables {
    model_uri = null
  }
  expect_failures = [var.model_uri]
}

run "a_folder_of_models_as_an_address" {
  command = plan
  variables {
    model_uri        = null
    catalogue_prefix = "gs://my-project-models/chat"
  }
  expect_failures = [var.catalogue_prefix]
}

run "a_file_of_models_outside_the_model_bucket" {
  command = plan
  variables {
    model_uri         = null
    models_config_uri = "gs://elsewhere/models.yaml"
  }
  expect_failures = [var.models_config_uri]
}

run "a_choice_from_no_catalogue" {
  command = plan
  variables {
    models = ["my-8b"]
  }
  expect_failures = [var.models]
}

run "two_names_in_one_place" {
  command = plan
  variables {
    model_uri        = null
    catalogue_prefix = ""
    models           = ["my-8b,my-1b"]
  }
  expect_failures = [var.models]
}

run "several_models_of_no_catalogue_in_memory" {
  command = plan
  variables {
    max_cached_models = 2
  }
  expect_failures = [var.max_cached_models]
}

run "no_model_in_memory" {
  command = plan
  variables {
    model_uri         = null
    catalogue_prefix  = ""
    max_cached_models = 0
  }
  expect_failures = [var.max_cached_models]
}

run "one_name_of_a_catalogue" {
  command = plan
  variables {
    model_uri        = null
    catalogue_prefix = ""
    model_name       = "my-model"
  }
  expect_failures = [var.model_name]
}

run "the_port_that_cloud_run_sets" {
  command = plan
  variables {
    env = { PORT = "9000" }
  }
  expect_failures = [var.env]
}

run "an_image_that_changes_under_the_service" {
  command = plan
  variables {
    image = "us-central1-docker.pkg.dev/my-project/levserve/levserve:latest"
  }
  expect_failures = [var.image]
}

run "more_slots_than_cloud_run_sends_requests" {
  command = plan
  variables {
    slots = 501
  }
  expect_failures = [var.slots]
}

run "one_identity_to_serve_and_to_prewarm" {
  command = plan
  variables {
    prewarm_account_email = "levserve-serve@my-project.iam.gserviceaccount.com"
  }
  expect_failures = [var.prewarm_account_email]
}

run "a_prewarm_image_that_changes_under_the_job" {
  command = plan
  variables {
    prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm:latest"
  }
  expect_failures = [var.prewarm_image]
}

run "a_request_longer_than_the_platform_allows" {
  command = plan
  variables {
    request_timeout_s = 3601
  }
  expect_failures = [var.request_timeout_s]
}

run "a_channel_that_is_an_address" {
  command = plan
  variables {
    notification_channels = ["me@example.com"]
  }
  expect_failures = [var.notification_channels]
}

run "a_dtype_of_another_library" {
  command = plan
  variables {
    dtype = "half"
  }
  expect_failures = [var.dtype]
}

run "a_key_of_another_variable" {
  command = plan
  variables {
    secret_env = { MODEL_URI = "my-secret" }
  }
  expect_failures = [var.secret_env]
}

run "a_zone_instead_of_a_region" {
  command = plan
  variables {
    region = "us-central1-a"
  }
  expect_failures = [var.region]
}

run "a_project_number" {
  command = plan
  variables {
    project_id = "123456789012"
  }
  expect_failures = [var.project_id]
}

run "a_cache_of_another_kind" {
  command = plan
  variables {
    model_cache = "fuse"
  }
  expect_failures = [var.model_cache]
}

run "a_file_of_keys_without_a_key_for_probes" {
  command = plan
  variables {
    key_file_secret = "levserve-api-keys"
  }
  expect_failures = [var.key_file_secret]
}

run "a_file_of_keys_as_a_variable" {
  command = plan
  variables {
    secret_env = { API_KEY_FILE = "levserve-api-keys" }
  }
  expect_failures = [var.secret_env]
}
