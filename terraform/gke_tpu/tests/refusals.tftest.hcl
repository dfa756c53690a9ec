# Variables that are rejected with a message before any plan.

mock_provider "google" {}

mock_provider "kubernetes" {}

mock_provider "helm" {}

variables {
  project_id            = "my-project"
  zone                  = "us-central1-a"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  model_uri             = "gs://my-project-models/my-8b"
  image                 = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:1.0"
  tpu_machine_type      = "ct5lp-hightpu-1t"
  tpu_topology          = "1x1"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  node_account_email    = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "an_unknown_machine" {
  command = plan
  variables {
    tpu_machine_type = "ct4p-hightpu-4t"
  }
  expect_failures = [var.tpu_machine_type]
}

run "a_topology_that_the_machine_does_not_form" {
  command = plan
  variables {
    tpu_machine_type = "ct6e-standard-1t"
    tpu_topology     = "2x2"
  }
  expect_failures = [var.tpu_topology]
}

run "a_topology_of_another_generation" {
  command = plan
  variables {
    tpu_machine_type = "tpu7x-standard-4t"
    tpu_topology     = "2x2"
  }
  expect_failures = [var.tpu_topology]
}

run "a_topology_of_several_machines" {
  command = plan
  variables {
    tpu_machine_type = "ct6e-standard-4t"
    tpu_topology     = "4x4"
  }
  expect_failures = [var.tpu_topology]
}

run "a_start_budget_over_the_limit" {
  command = plan
  variables {
    startup_budget_s = 10000
  }
  expect_failures = [var.startup_budget_s]
}

run "a_zone_of_another_region" {
  command = plan
  variables {
    zone = "europe-west4-a"
  }
  expect_failures = [var.zone]
}

run "a_reservation_without_its_name" {
  command = plan
  variables {
    capacity = "reservation"
  }
  expect_failures = [var.reservation_name]
}

run "a_reservation_that_is_not_used" {
  command = plan
  variables {
    reservation_name = "my-reservation"
  }
  expect_failures = [var.reservation_name]
}

run "a_spot_drain_that_outlives_the_machine" {
  command = plan
  variables {
    capacity = "spot"
    drain_s  = 60
  }
  expect_failures = [var.drain_s]
}

run "an_external_gateway_without_a_key" {
  command = plan
  variables {
    gateway         = "external"
    hostname        = "llm.example.com"
    certificate_map = "my-map"
  }
  expect_failures = [var.gateway]
}

run "an_external_gateway_without_tls" {
  command = plan
  variables {
    gateway    = "external"
    secret_env = { API_KEY = "levserve-api-key" }
  }
  expect_failures = [var.gateway]
}

run "an_autoscaler_that_would_never_act" {
  command = plan
  variables {
    slots                        = 8
    waiting_requests_per_replica = 10
  }
  expect_failures = [var.waiting_requests_per_replica]
}

run "a_cache_larger_than_the_nodes_disk" {
  command = plan
  variables {
    model_cache = "disk"
    cache_gib   = 90
  }
  expect_failures = [var.cache_gib]
}

run "rest_without_anything_that_notices_a_request" {
  command = plan
  variables {
    min_replicas = 0
    gateway      = "none"
  }
  expect_failures = [var.min_replicas]
}
