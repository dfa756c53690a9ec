mock_provider "google" {}

variables {
  project_id        = "my-project"
  github_repository = "my-org/levserve"
}

run "only_one_repository_may_ask_for_tokens" {
  command = plan

  assert {
    condition     = google_iam_workload_identity_pool_provider.github.attribute_condition == "assertion.repository == \"my-org/levserve\""
    error_message = "The provider must refuse every other repository."
  }
}

run "a_repository_is_an_owner_and_a_name" {
  command = plan
  variables {
    github_repository = "https://github.com/my-org/levserve.git"
  }
  expect_failures = [var.github_repository]
}
