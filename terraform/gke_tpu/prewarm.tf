# Compile for this TPU before the service starts on it: in Cloud Build, without a TPU and before there is one, by the
# command of terraform_data.bundle; and in a job on the TPU, which takes what it finds and compiles the rest. A Kubernetes
# job is immutable, so a new image or setting is a new job, with another hash in its name.

locals {
  prewarm_image = coalesce(var.prewarm_image, var.image)
}

# Makes nothing: an apply with -target=terraform_data.bundle writes the output bundle_command before there is a cluster.
resource "terraform_data" "bundle" {
  input = module.settings.bundle_command
}

resource "kubernetes_job_v1" "prewarm" {
  count = var.prewarm_on_apply ? 1 : 0

  metadata {
    name      = "${var.service_name}-prewarm-${substr(sha256(jsonencode([local.prewarm_image, var.image, var.tpu_machine_type, var.tpu_topology, module.settings.env])), 0, 8)}"
    namespace = kubernetes_namespace_v1.main.metadata[0].name
    labels    = { app = "${var.service_name}-prewarm" }
  }

  spec {
    backoff_limit = 1

    template {
      metadata {
        labels = { app = "${var.service_name}-prewarm" }
      }

      spec {
        service_account_name            = kubernetes_service_account_v1.main["prewarm"].metadata[0].name
        automount_service_account_token = false
        restart_policy                  = "Never"

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
          name  = "prewarm"
          image = local.prewarm_image
          args  = module.settings.prewarm_args

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

          volume_mount {
            name       = "tmp"
            mount_path = "/tmp"
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
              value_from {
                secret_key_ref {
                  name = env.value
                  key  = env.key
                }
              }
            }
          }
        }

        volume {
          name = "tmp"
          empty_dir {}
        }
      }
    }
  }

  wait_for_completion = var.capacity != "flex_start" # its capacity may take a day

  timeouts {
    create = "90m"
    update = "90m"
  }

  depends_on = [google_container_node_pool.tpu, google_service_account_iam_member.pods_act_as]
}
