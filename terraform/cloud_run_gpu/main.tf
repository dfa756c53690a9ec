# The service, and the job that compiles its bundle.
#
# Terraform owns the shape; `gcloud run` and Cloud Build own the image and the traffic of revisions. Both resources ignore
# the image and the traffic below, so that neither side undoes the other.

locals {
  labels = { app = "levserve" }
}

resource "google_cloud_run_v2_service" "main" {
  project              = var.project_id
  name                 = var.service_name
  location             = var.region
  description          = "Levserve: ${module.settings.models}"
  labels               = local.labels
  ingress              = var.ingress
  invoker_iam_disabled = false
  deletion_protection  = var.deletion_protection_enabled
  launch_stage         = var.model_cache == "disk" ? "BETA" : "GA"

  # On the service, not on the revision, so that a revision under test keeps no instance running.
  scaling {
    min_instance_count = var.min_instances
  }

  template {
    service_account                  = var.serve_account_email
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    timeout                          = "${min(3600, var.request_timeout_s + local.startup_budget_s)}s"
    max_instance_request_concurrency = module.settings.concurrency
    gpu_zonal_redundancy_disabled    = local.has_gpu ? !var.gpu_zonal_redundancy_enabled : null

    scaling {
      max_instance_count = var.max_instances
    }

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

    dynamic "volumes" {
      for_each = var.model_cache == "none" ? [] : [var.model_cache]
      content {
        name = "cache"
        empty_dir {
          medium     = upper(volumes.value)
          size_limit = "${var.cache_gib}Gi"
        }
      }
    }

    dynamic "volumes" {
      for_each = var.key_file_secret == null ? [] : [module.settings.key_file]
      content {
        name = "keys"
        secret {
          secret = var.key_file_secret
          items {
            version = "latest"
            path    = volumes.value.name
          }
        }
      }
    }

    containers {
      name  = "levserve"
      image = var.image
      args  = ["serve"]

      ports {
        name           = "http1"
        container_port = 8080
      }

      resources {
        limits = merge(
          { cpu = tostring(var.cpu), memory = "${var.memory_gib}Gi" },
          local.has_gpu ? { "nvidia.com/gpu" = "1" } : {},
        )
        cpu_idle          = false # a GPU requires CPU that is always allocated, and so does the drain
        startup_cpu_boost = var.startup_cpu_boost_enabled
      }

      # Ready means that a real token was generated; the default probe would pass as soon as the port is open.
      startup_probe {
        period_seconds    = local.startup_period_s
        timeout_seconds   = 5
        failure_threshold = ceil(local.startup_budget_s / local.startup_period_s)
        http_get {
          path = "/health/ready"
          port = 8080
        }
      }

      # An instance that hangs gets no further requests, well before the liveness probe ends it.
      readiness_probe {
        period_seconds    = 10
        timeout_seconds   = 5
        failure_threshold = 2
        success_threshold = 1
        http_get {
          path = "/health/ready"
          port = 8080
        }
      }

      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 10
        failure_threshold = 3
        http_get {
          path = "/health/live"
          port = 8080
        }
      }

      dynamic "env" {
        for_each = module.settings.env
        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = var.secret_env
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }

      dynamic "volume_mounts" {
        for_each = var.model_cache == "none" ? [] : [local.cache_path]
        content {
          name       = "cache"
          mount_path = volume_mounts.value
        }
      }

      dynamic "volume_mounts" {
        for_each = var.key_file_secret == null ? [] : [module.settings.key_file]
        content {
          name       = "keys"
          mount_path = volume_mounts.value.folder
        }
      }
    }

    # Without a configuration, it scrapes localhost:8080/metrics every 30 s.
    dynamic "containers" {
      for_each = var.metrics_sidecar_enabled ? [var.metrics_sidecar_image] : []
      content {
        name       = "metrics"
        image      = containers.value
        depends_on = ["levserve"]
        resources {
          limits   = { cpu = tostring(local.sidecar_cpu), memory = "${local.sidecar_memory_gib}Gi" }
          cpu_idle = false
        }
      }
    }
  }

  timeouts {
    create = "45m" # a start may take longer than the default of 20 minutes
    update = "45m"
  }

  lifecycle {
    ignore_changes = [
      client,
      client_version,
      traffic,
      template[0].annotations, # gcloud writes the image
      template[0].containers[0].image,
      template[0].labels, # gcloud labels each deployment
    ]
  }

  depends_on = [
    google_cloud_run_v2_job.prewarm,
    google_secret_manager_secret_iam_member.serve_reads_keys,
  ]
}

# The same packages, settings and GPU as the service, because a bundle fits only these. Terraform makes the job and never
# executes it: the API drops an execution token at the next execution, and each later plan would differ
# (https://github.com/GoogleCloudPlatform/magic-modules/pull/19060). The output prewarm_command and each build execute it.
resource "google_cloud_run_v2_job" "prewarm" {
  project             = var.project_id
  name                = "${var.service_name}-prewarm"
  location            = var.region
  labels              = local.labels
  deletion_protection = false
  launch_stage        = "GA"

  template {
    task_count = 1

    template {
      service_account               = var.prewarm_account_email
      execution_environment         = "EXECUTION_ENVIRONMENT_GEN2"
      timeout                       = "3600s"
      max_retries                   = 1
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
        name  = "prewarm"
        image = coalesce(var.prewarm_image, var.image)
        args  = module.settings.prewarm_args

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

        dynamic "env" {
          for_each = module.settings.prewarm_secret_env
          content {
            name = env.key
            value_source {
              secret_key_ref {
                secret  = env.value
                version = "latest"
              }
            }
          }
        }
      }
    }
  }

  depends_on = [google_secret_manager_secret_iam_member.prewarm_reads_keys]

  lifecycle {
    ignore_changes = [
      client,
      client_version,
      template[0].annotations,
      template[0].labels,
      template[0].template[0].containers[0].image,
    ]
  }
}
