# APIs and the image registry.

locals {
  services = toset([
    "artifactregistry.googleapis.com",
    "certificatemanager.googleapis.com", # certificates of GKE's external gateway
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "containerfilesystem.googleapis.com", # image streaming on GKE
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
  ])
  repository   = var.repository == null ? google_artifact_registry_repository.main[0].repository_id : var.repository
  image_prefix = "${var.region}-docker.pkg.dev/${var.project_id}/${local.repository}"
  labels       = { app = "levserve" }
}

resource "google_project_service" "main" {
  for_each = local.services

  project            = var.project_id
  service            = each.key
  disable_on_destroy = false
}

resource "google_artifact_registry_repository" "main" {
  count = var.repository == null ? 1 : 0

  project       = var.project_id
  repository_id = var.name
  location      = var.region
  format        = "DOCKER"
  description   = "Images of Levserve."
  labels        = local.labels

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

  # Keep policies take precedence over delete policies. The count is by image name, which contains the accelerator: a
  # week of CPU builds deletes no GPU image.
  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"

    most_recent_versions {
      keep_count = var.images_kept
    }
  }

  depends_on = [google_project_service.main]
}

# A build that compiles a bundle runs in the image of the prewarm job.
resource "google_artifact_registry_repository_iam_member" "prewarm_reads_images" {
  project    = var.project_id
  repository = local.repository
  location   = var.region
  role       = "roles/artifactregistry.reader"
  member     = "serviceAccount:${local.emails["prewarm"]}"
}

resource "google_artifact_registry_repository_iam_member" "deploy_writes_images" {
  project    = var.project_id
  repository = local.repository
  location   = var.region
  role       = "roles/artifactregistry.writer"
  member     = "serviceAccount:${local.emails["deploy"]}"
}
