# Replicas follow the queue and the slots in use, and node drains respect them.

resource "kubernetes_horizontal_pod_autoscaler_v2" "main" {
  metadata {
    name      = var.service_name
    namespace = kubernetes_namespace_v1.main.metadata[0].name
  }

  spec {
    min_replicas = var.min_replicas
    max_replicas = var.max_replicas

    scale_target_ref {
      api_version = "apps/v1"
      kind        = "Deployment"
      name        = kubernetes_deployment_v1.main.metadata[0].name
    }

    metric {
      type = "Pods"
      pods {
        metric {
          name = "prometheus.googleapis.com|levserve_num_requests_waiting|gauge"
        }
        target {
          type          = "AverageValue"
          average_value = tostring(var.waiting_requests_per_replica)
        }
      }
    }

    # The larger demand of the two counts: running requests keep the replicas that serve them.
    metric {
      type = "Pods"
      pods {
        metric {
          name = "prometheus.googleapis.com|levserve_num_requests_running|gauge"
        }
        target {
          type          = "AverageValue"
          average_value = tostring(max(1, floor(var.slot_utilization * var.slots)))
        }
      }
    }

    # A replica is a TPU VM: add replicas quickly, remove them slowly.
    behavior {
      scale_up {
        stabilization_window_seconds = 0
        select_policy                = "Max"
        policy {
          type           = "Pods"
          value          = 1
          period_seconds = 60
        }
      }
      scale_down {
        stabilization_window_seconds = 600
        select_policy                = "Max"
        policy {
          type           = "Pods"
          value          = 1
          period_seconds = 300
        }
      }
    }
  }
}

resource "kubernetes_pod_disruption_budget_v1" "main" {
  metadata {
    name      = var.service_name
    namespace = kubernetes_namespace_v1.main.metadata[0].name
  }

  spec {
    max_unavailable = "1"

    selector {
      match_labels = local.pod_labels
    }
  }
}
