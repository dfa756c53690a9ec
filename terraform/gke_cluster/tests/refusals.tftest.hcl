# Variables that are rejected with a message before any plan.

mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

variables {
  project_id         = "my-project"
  zone               = "us-central1-a"
  network            = "levserve"
  subnetwork         = "levserve-us-central1"
  node_account_email = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "a_zone_of_another_region" {
  command = plan
  variables {
    zone = "europe-west4-a"
  }
  expect_failures = [var.zone]
}

run "a_project_number" {
  command = plan
  variables {
    project_id = "123456789012"
  }
  expect_failures = [var.project_id]
}

run "an_adapter_from_a_branch" {
  command = plan
  variables {
    metrics_adapter_version = "master"
  }
  expect_failures = [var.metrics_adapter_version]
}

run "a_window_without_a_rule" {
  command = plan
  variables {
    maintenance_window = { start_time = "2026-01-03T02:00:00Z", end_time = "2026-01-03T10:00:00Z", recurrence = "weekends" }
  }
  expect_failures = [var.maintenance_window]
}

run "a_proxy_subnet_too_small" {
  command = plan
  variables {
    proxy_subnet_cidr = "10.9.0.0/28"
  }
  expect_failures = [var.proxy_subnet_cidr]
}

run "keda_from_a_branch" {
  command = plan
  variables {
    keda_version = "main"
  }
  expect_failures = [var.keda_version]
}
