# Two buckets of different trust: checkpoints are data, bundles are native code that every instance runs. A bucket that
# exists already only gets its grants. Without data_deletion_enabled a destroy stops at a bucket that holds objects.

locals {
  # The name as soon as the bucket exists.
  models  = var.model_bucket_created ? google_storage_bucket.models[0].name : var.model_bucket_name
  bundles = var.bundle_bucket_created ? google_storage_bucket.bundles[0].name : var.bundle_bucket_name
}

resource "google_storage_bucket" "models" {
  count = var.model_bucket_created ? 1 : 0

  project                     = var.project_id
  name                        = var.model_bucket_name
  location                    = var.region
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.data_deletion_enabled
  labels                      = local.labels

  versioning {
    enabled = true # a start pins the generations that it reads, so a replaced file must stay readable
  }

  lifecycle_rule {
    condition {
      days_since_noncurrent_time = var.noncurrent_days
      with_state                 = "ARCHIVED"
    }
    action {
      type = "Delete"
    }
  }

  lifecycle_rule {
    condition {
      age = 7
    }
    action {
      type = "AbortIncompleteMultipartUpload"
    }
  }

  depends_on = [google_project_service.main]
}

resource "google_storage_bucket" "bundles" {
  count = var.bundle_bucket_created ? 1 : 0

  project                     = var.project_id
  name                        = var.bundle_bucket_name
  location                    = var.region
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.data_deletion_enabled
  labels                      = local.labels

  versioning {
    enabled = true
  }

  lifecycle_rule {
    condition {
      days_since_noncurrent_time = var.noncurrent_days
      with_state                 = "ARCHIVED"
    }
    action {
      type = "Delete"
    }
  }

  depends_on = [google_project_service.main]
}

# Uploads of `gcloud builds submit`, which can be deleted.
resource "google_storage_bucket" "build_sources" {
  project                     = var.project_id
  name                        = "${var.project_id}-${var.name}-build"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true
  labels                      = local.labels

  lifecycle_rule {
    condition {
      age = 7
    }
    action {
      type = "Delete"
    }
  }

  depends_on = [google_project_service.main]
}

resource "google_storage_bucket_iam_member" "models_read" {
  for_each = toset(["serve", "prewarm"])

  bucket = local.models
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${local.emails[each.key]}"
}

resource "google_storage_bucket_iam_member" "models_write" {
  for_each = toset(var.model_writers)

  bucket = local.models
  role   = "roles/storage.objectUser"
  member = each.key
}

# Reading is part of the role: an import that was interrupted compares what is there.
resource "google_storage_bucket_iam_member" "models_import" {
  bucket = local.models
  role   = "roles/storage.objectUser"
  member = "serviceAccount:${local.emails["import"]}"
}

resource "google_storage_bucket_iam_member" "bundles_read" {
  bucket = local.bundles
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${local.emails["serve"]}"
}

# The only grant of this repository that allows writing bundles.
resource "google_storage_bucket_iam_member" "bundles_write" {
  bucket = local.bundles
  role   = "roles/storage.objectUser"
  member = "serviceAccount:${local.emails["prewarm"]}"
}

resource "google_storage_bucket_iam_member" "build_sources_read" {
  bucket = google_storage_bucket.build_sources.name
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${local.emails["deploy"]}"
}
