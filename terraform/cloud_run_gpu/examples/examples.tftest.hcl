# Plan one example: terraform test -test-directory=examples -var-file=examples/l4_8b.tfvars

mock_provider "google" {}

variables {
  project_id            = "my-project"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  network               = "levserve"
  subnetwork            = "levserve-us-central1"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  deploy_account_email  = "levserve-deploy@my-project.iam.gserviceaccount.com"
}

run "the_example_plans" {
  command = plan
}
