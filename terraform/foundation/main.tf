# APIs and the image registry.

locals {
  services = toset([
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
  ])
  image_prefix = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.main.repository_id}"
}

resource "google_project_service" "main" {
  for_each = local.services

  service            = each.key
  disable_on_destroy = false
}

resource "google_artifact_registry_repository" "main" {
  repository_id = var.name
  location      = var.region
  format        = "DOCKER"
  description   = "Images of Levserve."

  cleanup_policies {
    id     = "delete-untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "604800s" # 7 days
    }
  }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"

    condition {
      tag_state  = "ANY"
      older_than = "7776000s" # 90 days
    }
  }

  # Keep policies take precedence over delete policies.
  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"

    most_recent_versions {
      keep_count = var.images_kept
    }
  }

  depends_on = [google_project_service.main]
}

resource "google_artifact_registry_repository_iam_member" "deploy_writes_images" {
  repository = google_artifact_registry_repository.main.name
  location   = var.region
  role       = "roles/artifactregistry.writer"
  member     = "serviceAccount:${local.emails["deploy"]}"
}
