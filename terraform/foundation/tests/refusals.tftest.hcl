# Variables that are rejected with a message before any plan.

mock_provider "google" {}

variables {
  project_id         = "my-project"
  model_bucket_name  = "my-project-models"
  bundle_bucket_name = "my-project-bundles"
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

run "an_address_instead_of_a_bucket_name" {
  command = plan
  variables {
    model_bucket_name = "gs://my-project-models"
  }
  expect_failures = [var.model_bucket_name]
}

run "models_and_bundles_in_one_bucket" {
  command = plan
  variables {
    bundle_bucket_name = "my-project-models"
  }
  expect_failures = [var.bundle_bucket_name]
}

run "models_that_anyone_may_write" {
  command = plan
  variables {
    model_writers = ["allUsers"]
  }
  expect_failures = [var.model_writers]
}

run "a_project_number" {
  command = plan
  variables {
    project_id = "123456789012"
  }
  expect_failures = [var.project_id]
}

run "a_zone_instead_of_a_region" {
  command = plan
  variables {
    region = "us-central1-a"
  }
  expect_failures = [var.region]
}

run "a_subnet_too_small_for_direct_egress" {
  command = plan
  variables {
    subnet_cidr = "10.8.0.0/28"
  }
  expect_failures = [var.subnet_cidr]
}

run "no_image_to_roll_back_to" {
  command = plan
  variables {
    images_kept = 1
  }
  expect_failures = [var.images_kept]
}

run "a_network_without_its_subnet" {
  command = plan
  variables {
    network = "shared"
  }
  expect_failures = [var.subnetwork]
}
