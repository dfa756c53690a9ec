# The job that answers a batch in shards, a task each. Like the prewarm job, Terraform makes it and never executes it: the
# output batch_command does. Tasks with a GPU are not migrated, and are interrupted sooner or later; one that is tried again
# goes on where it was.

locals {
  max_task_s = local.has_gpu ? 43200 : 604800
  # gs://bucket/folder to bucket, of the places that the job reads and writes.
  batch_buckets = { for end in ["input", "output"] : end => var.batch == null ? null : split("/", var.batch[end])[2] }
  batch_roles   = { input = "roles/storage.objectViewer", output = "roles/storage.objectUser" }
}

resource "google_cloud_run_v2_job" "batch" {
  count = var.batch == null ? 0 : 1

  project             = var.project_id
  name                = "${var.service_name}-batch"
  location            = var.region
  labels              = local.labels
  deletion_protection = false
  launch_stage        = local.has_gpu && var.batch.timeout_s > 3600 ? "BETA" : "GA" # in Preview beyond an hour with a GPU

  template {
    task_count  = var.batch.tasks
    parallelism = var.batch.tasks

    template {
      service_account               = var.serve_account_email
      execution_environment         = "EXECUTION_ENVIRONMENT_GEN2"
      timeout                       = "${var.batch.timeout_s}s"
      max_retries                   = 10
      gpu_zonal_redundancy_disabled = local.has_gpu ? true : null

      dynamic "node_selector" {
        for_each = local.has_gpu ? [var.gpu_type] : []
        content {
          accelerator = node_selector.value
        }
      }

      vpc_access {
        egress = "ALL_TRAFFIC"
        network_interfaces {
          network    = var.network
          subnetwork = var.subnetwork
        }
      }

      containers {
        name  = "batch"
        image = var.image
        args  = concat(["batch", var.batch.input, var.batch.output], var.batch.args)

        resources {
          limits = merge(
            { cpu = tostring(var.cpu), memory = "${var.memory_gib}Gi" },
            local.has_gpu ? { "nvidia.com/gpu" = "1" } : {},
          )
        }

        dynamic "env" {
          for_each = module.settings.prewarm_env
          content {
            name  = env.key
            value = env.value
          }
        }
      }
    }
  }

  lifecycle {
    ignore_changes = [
      client,
      client_version,
      template[0].annotations,
      template[0].labels,
      template[0].template[0].containers[0].image,
    ]
  }

  depends_on = [google_storage_bucket_iam_member.batch]
}

resource "google_storage_bucket_iam_member" "batch" {
  for_each = var.batch == null ? {} : local.batch_roles

  bucket = local.batch_buckets[each.key]
  role   = each.value
  member = "serviceAccount:${var.serve_account_email}"
}
