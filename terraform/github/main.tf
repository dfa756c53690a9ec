# Identities of GitHub's workflows, without a stored key: of one repository alone, and images only from its tags.

locals {
  identities = {
    publish = "GitHub: pushes the images of a tag, and nothing else."
    smoke   = "GitHub: tests a deployment; give it the service as one of its invokers."
  }
  # A tag `v…` of the repository publishes, and any of its workflows tests.
  principals = { publish = "attribute.release", smoke = "attribute.repository" }
}

resource "google_project_service" "main" {
  for_each = toset(["iam.googleapis.com", "iamcredentials.googleapis.com", "sts.googleapis.com"])

  project            = var.project_id
  service            = each.key
  disable_on_destroy = false
}

resource "google_iam_workload_identity_pool" "github" {
  project                   = var.project_id
  workload_identity_pool_id = "${var.name}-github"
  display_name              = "${var.name} GitHub"
  description               = "Workflows of ${var.github_repository}."

  depends_on = [google_project_service.main]
}

resource "google_iam_workload_identity_pool_provider" "github" {
  project                            = var.project_id
  workload_identity_pool_id          = google_iam_workload_identity_pool.github.workload_identity_pool_id
  workload_identity_pool_provider_id = "github"
  display_name                       = "GitHub"
  # Without it every repository on GitHub could ask for a token.
  attribute_condition = "assertion.repository == \"${var.github_repository}\""
  attribute_mapping = {
    "google.subject"       = "assertion.sub"
    "attribute.repository" = "assertion.repository"
    "attribute.release"    = "assertion.ref.startsWith(\"refs/tags/v\") ? assertion.repository : \"none\""
  }

  oidc {
    issuer_uri = "https://token.actions.githubusercontent.com"
  }
}

resource "google_service_account" "github" {
  for_each = local.identities

  project      = var.project_id
  account_id   = "${var.name}-${each.key}"
  display_name = "${var.name} ${each.key}"
  description  = each.value
}

resource "google_service_account_iam_member" "github" {
  for_each = local.identities

  service_account_id = google_service_account.github[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "principalSet://iam.googleapis.com/${google_iam_workload_identity_pool.github.name}/${local.principals[each.key]}/${var.github_repository}"
}

resource "google_artifact_registry_repository_iam_member" "publish_writes_images" {
  project    = var.project_id
  repository = var.repository
  location   = var.region
  role       = "roles/artifactregistry.writer"
  member     = "serviceAccount:${google_service_account.github["publish"].email}"
}
