# One pod uses one TPU VM with all its chips. A slice of several VMs would be a LeaderWorkerSet with the same pod
# template.

locals {
  pod_labels = { app = var.service_name }
  port       = 8080
  # The load balancer drops a pod up to 40 s after its termination begins; until then it still sends requests. A spot TPU
  # gives its pods 15 s, which is too little for that. Source: https://cloud.google.com/knowledge/kb/502-503-errors-on-external-http-s-load-balancer-000006416
  deregister_s = var.capacity == "spot" ? 2 : 40
}

resource "kubernetes_deployment_v1" "main" {
  metadata {
    name      = var.service_name
    namespace = kubernetes_namespace_v1.main.metadata[0].name
    labels    = local.pod_labels
  }

  spec {
    replicas                  = var.min_replicas
    progress_deadline_seconds = var.startup_budget_s + 1800 # plus the time to get a TPU

    selector {
      match_labels = local.pod_labels
    }

    # A rollout replaces one pod at a time and reuses its TPU, because there is no spare one. With one replica this is a
    # gap as long as a warm start.
    strategy {
      type = "RollingUpdate"
      rolling_update {
        max_surge       = "0"
        max_unavailable = "1"
      }
    }

    template {
      metadata {
        # Pickers read the kind of engine, whose series METRICS_COMPAT=vllm exports.
        labels = merge(local.pod_labels, { "llm-d.ai/engine-type" = "vllm" })
      }

      spec {
        service_account_name             = kubernetes_service_account_v1.main["serve"].metadata[0].name
        automount_service_account_token  = false
        enable_service_links             = false # otherwise variables such as LEVSERVE_PORT appear among the settings
        termination_grace_period_seconds = local.deregister_s + local.drain_s + 5

        security_context {
          seccomp_profile {
            type = "RuntimeDefault"
          }
        }

        node_selector = {
          "cloud.google.com/gke-tpu-accelerator" = local.tpu.accelerator
          "cloud.google.com/gke-tpu-topology"    = var.tpu_topology
        }

        toleration {
          key      = "google.com/tpu"
          operator = "Exists"
        }

        container {
          name  = "levserve"
          image = var.image
          args  = ["serve"]

          port {
            name           = "http"
            container_port = local.port
          }

          resources {
            requests = local.pod_resources.requests
            limits   = local.pod_resources.limits
          }

          security_context {
            run_as_user                = var.run_as_user
            run_as_non_root            = var.run_as_user != 0
            allow_privilege_escalation = false
            read_only_root_filesystem  = true

            capabilities {
              drop = ["ALL"]
            }
          }

          startup_probe {
            period_seconds    = 10
            timeout_seconds   = 5
            failure_threshold = ceil(var.startup_budget_s / 10)
            http_get {
              path = "/health/ready"
              port = "http"
            }
          }

          readiness_probe {
            period_seconds    = 5
            timeout_seconds   = 5
            failure_threshold = 2
            http_get {
              path = "/health/ready"
              port = "http"
            }
          }

          liveness_probe {
            period_seconds    = 30
            timeout_seconds   = 10
            failure_threshold = 3
            http_get {
              path = "/health/live"
              port = "http"
            }
          }

          lifecycle {
            pre_stop {
              exec {
                command = ["sleep", tostring(local.deregister_s)]
              }
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
              value_from {
                secret_key_ref {
                  name = env.value
                  key  = env.key
                }
              }
            }
          }

          volume_mount {
            name       = "tmp"
            mount_path = "/tmp"
          }

          dynamic "volume_mount" {
            for_each = var.model_cache == "none" ? [] : [local.cache_path]
            content {
              name       = "cache"
              mount_path = volume_mount.value
            }
          }

          dynamic "volume_mount" {
            for_each = var.key_file_secret == null ? [] : [module.settings.key_file]
            content {
              name       = "keys"
              mount_path = volume_mount.value.folder
              read_only  = true
            }
          }
        }

        # The only folder of the image's own that a pod may write: HOME, the weights' and the compiler's scratch.
        volume {
          name = "tmp"
          empty_dir {}
        }

        dynamic "volume" {
          for_each = var.model_cache == "none" ? [] : [var.model_cache]
          content {
            name = "cache"
            empty_dir {
              medium     = volume.value == "memory" ? "Memory" : ""
              size_limit = "${var.cache_gib}Gi"
            }
          }
        }

        dynamic "volume" {
          for_each = var.key_file_secret == null ? [] : [module.settings.key_file]
          content {
            name = "keys"
            secret {
              secret_name = var.key_file_secret
              items {
                key  = volume.value.name
                path = volume.value.name
              }
            }
          }
        }
      }
    }
  }

  wait_for_rollout = var.capacity != "flex_start"

  timeouts {
    create = "150m"
    update = "150m"
  }

  lifecycle {
    ignore_changes = [spec[0].replicas] # set by the autoscaler
  }

  depends_on = [
    google_container_node_pool.tpu,
    google_service_account_iam_member.pods_act_as,
    kubernetes_job_v1.prewarm,
  ]
}

resource "kubernetes_service_v1" "main" {
  metadata {
    name      = var.service_name
    namespace = kubernetes_namespace_v1.main.metadata[0].name
    labels    = local.pod_labels
  }

  spec {
    type     = "ClusterIP"
    selector = local.pod_labels

    port {
      name        = "http"
      port        = 80
      target_port = "http"
    }
  }
}
