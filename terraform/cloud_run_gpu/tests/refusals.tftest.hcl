# Variables that are rejected with a message before any plan.

mock_provider "google" {}

variables {
  project_id            = "my-project"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  model_uri             = "gs://my-project-models/my-8b"
  image                 = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:1.0"
  network               = "levserve"
  subnetwork            = "levserve-us-central1"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  deploy_account_email  = "levserve-deploy@my-project.iam.gserviceaccount.com"
}

run "an_unknown_gpu" {
  command = plan
  variables {
    gpu_type = "nvidia-h100"
  }
  expect_failures = [var.gpu_type]
}

run "an_l4_with_too_little_cpu" {
  command = plan
  variables {
    gpu_type = "nvidia-l4"
    cpu      = 2
  }
  expect_failures = [var.cpu]
}

run "an_l4_with_too_little_memory" {
  command = plan
  variables {
    gpu_type   = "nvidia-l4"
    memory_gib = 8
  }
  expect_failures = [var.memory_gib]
}

run "an_l4_with_more_cpu_than_there_is" {
  command = plan
  variables {
    gpu_type                = "nvidia-l4"
    cpu                     = 8
    memory_gib              = 24
    metrics_sidecar_enabled = true
  }
  expect_failures = [var.cpu]
}

run "an_rtx_pro_6000_with_an_l4s_cpu" {
  command = plan
  variables {
    gpu_type   = "nvidia-rtx-pro-6000"
    cpu        = 8
    memory_gib = 80
  }
  expect_failures = [var.cpu]
}

run "an_rtx_pro_6000_with_an_l4s_memory" {
  command = plan
  variables {
    gpu_type   = "nvidia-rtx-pro-6000"
    cpu        = 20
    memory_gib = 32
  }
  expect_failures = [var.memory_gib]
}

run "a_start_budget_over_the_limit_with_a_gpu" {
  command = plan
  variables {
    startup_budget_s = 3600
  }
  expect_failures = [var.startup_budget_s]
}

run "a_start_budget_over_the_limit_without_a_gpu" {
  command = plan
  variables {
    gpu_type         = "none"
    cpu              = 4
    memory_gib       = 8
    startup_budget_s = 600
  }
  expect_failures = [var.startup_budget_s]
}

run "everyone_as_an_invoker" {
  command = plan
  variables {
    invokers = ["allUsers"]
  }
  expect_failures = [var.invokers]
}

run "public_access_without_a_key" {
  command = plan
  variables {
    public_access_enabled = true
  }
  expect_failures = [var.public_access_enabled]
}

run "a_key_where_a_secrets_name_belongs" {
  command = plan
  variables {
    secret_env = { API_KEY = "sk/123+456" }
  }
  expect_failures = [var.secret_env]
}

run "a_disk_smaller_than_there_are" {
  command = plan
  variables {
    model_cache = "disk"
    cache_gib   = 5
  }
  expect_failures = [var.cache_gib]
}

run "a_cache_in_memory_that_leaves_no_memory" {
  command = plan
  variables {
    model_cache = "memory"
    cache_gib   = 28
  }
  expect_failures = [var.cache_gib]
}

run "more_always_ready_than_at_most" {
  command = plan
  variables {
    min_instances = 3
    max_instances = 2
  }
  expect_failures = [var.min_instances]
}

run "a_metrics_sidecar_that_has_no_key" {
  command = plan
  variables {
    cpu                     = 6
    memory_gib              = 24
    metrics_sidecar_enabled = true
    secret_env              = { API_KEY = "levserve-api-key" }
  }
  expect_failures = [var.metrics_sidecar_enabled]
}

run "a_gpu_that_the_region_lacks" {
  command = plan
  variables {
    gpu_type   = "nvidia-rtx-pro-6000"
    cpu        = 20
    memory_gib = 80
    region     = "us-east4"
  }
  expect_failures = [check.gpu_is_offered_in_the_region]
}

run "a_number_of_vcpus_between_shapes" {
  command = plan
  variables {
    gpu_type   = "nvidia-l4"
    cpu        = 5
    memory_gib = 16
  }
  expect_failures = [var.cpu]
}

run "seven_vcpus" {
  command = plan
  variables {
    gpu_type   = "nvidia-l4"
    cpu        = 7
    memory_gib = 24
  }
  expect_failures = [var.cpu]
}

run "more_memory_than_four_vcpus_may_have" {
  command = plan
  variables {
    gpu_type   = "nvidia-l4"
    cpu        = 4
    memory_gib = 32
  }
  expect_failures = [var.memory_gib]
}

run "more_memory_than_six_vcpus_may_have" {
  command = plan
  variables {
    gpu_type   = "nvidia-l4"
    cpu        = 6
    memory_gib = 30
  }
  expect_failures = [var.memory_gib]
}

run "answers_inside_the_input_of_a_batch" {
  command = plan
  variables {
    batch = { input = "gs://my-data/in", output = "gs://my-data/in/out" }
  }
  expect_failures = [var.batch]
}

run "a_batch_between_local_folders" {
  command = plan
  variables {
    batch = { input = "/data/in", output = "gs://my-data/out" }
  }
  expect_failures = [var.batch]
}

run "a_task_of_a_batch_of_a_day_with_a_gpu" {
  command = plan
  variables {
    batch = { input = "gs://my-data/in", output = "gs://my-data/out", timeout_s = 86400 }
  }
  expect_failures = [var.batch]
}

run "a_batch_of_no_tasks" {
  command = plan
  variables {
    batch = { input = "gs://my-data/in", output = "gs://my-data/out", tasks = 0 }
  }
  expect_failures = [var.batch]
}
