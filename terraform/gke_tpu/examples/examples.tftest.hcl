# Plan one example: terraform test -test-directory=examples -var-file=examples/v5e_1.tfvars

mock_provider "google" {}

mock_provider "kubernetes" {}

mock_provider "helm" {}

variables {
  project_id            = "my-project"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  node_account_email    = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "the_example_plans" {
  command = plan
}
