# Plan one example: terraform test -test-directory=examples -var-file=examples/us_central1_a.tfvars

mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

variables {
  project_id         = "my-project"
  network            = "levserve"
  subnetwork         = "levserve-us-central1"
  node_account_email = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "the_example_plans" {
  command = plan
}
