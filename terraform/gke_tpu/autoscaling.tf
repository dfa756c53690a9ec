# Replicas follow the queue and the slots in use, and node drains respect them. A horizontal autoscaler cannot go to 0;
# from 0, where no pod can report a queue, KEDA follows the requests that the gateway counts.

locals {
  running_per_replica = max(1, floor(var.slot_utilization * var.slots))

  # The load balancer counts a request too that no pod answers, with 503. Source: the names in PromQL are those of
  # https://cloud.google.com/monitoring/promql/promql-mapping; a load balancer of GKE has the namespace and the name in its own.
  gateway_requests = {
    external = "loadbalancing_googleapis_com:https_request_count{monitored_resource=\"https_lb_rule\""
    internal = "loadbalancing_googleapis_com:https_internal_request_count{monitored_resource=\"internal_http_lb_rule\""
    none     = ""
  }
  demands = {
    waiting = { query = local.charts.waiting, per_replica = var.waiting_requests_per_replica }
    running = { query = local.charts.slots, per_replica = local.running_per_replica }
    # Its own threshold adds no replica: a request that is waited for is one replica, however many there are.
    requests = {
      query       = "clamp_max(sum(increase(${local.gateway_requests[var.gateway]},url_map_name=~\"gkegw1-.*-${local.namespace}-${var.service_name}-.*\"}[10m])), 1)"
      per_replica = 1
    }
  }

  # Source: https://keda.sh/docs/2.17/scalers/prometheus/
  scaled_object = {
    apiVersion = "keda.sh/v1alpha1"
    kind       = "ScaledObject"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec = {
      scaleTargetRef  = { name = var.service_name }
      minReplicaCount = 0
      maxReplicaCount = var.max_replicas
      pollingInterval = 15
      cooldownPeriod  = 900
      advanced = {
        horizontalPodAutoscalerConfig = {
          behavior = {
            scaleUp   = { stabilizationWindowSeconds = 0, policies = [{ type = "Pods", value = 1, periodSeconds = 60 }] }
            scaleDown = { stabilizationWindowSeconds = 600, policies = [{ type = "Pods", value = 1, periodSeconds = 300 }] }
          }
        }
      }
      triggers = [for name, demand in local.demands : {
        type              = "prometheus"
        name              = name
        authenticationRef = { name = var.service_name }
        metadata = {
          serverAddress = "https://monitoring.googleapis.com/v1/projects/${var.project_id}/location/global/prometheus"
          query         = demand.query
          threshold     = tostring(demand.per_replica)
        }
      }]
    }
  }

  scaler_authentication = {
    apiVersion = "keda.sh/v1alpha1"
    kind       = "TriggerAuthentication"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec       = { podIdentity = { provider = "gcp" } }
  }
}

resource "kubernetes_horizontal_pod_autoscaler_v2" "main" {
  count = var.min_replicas == 0 ? 0 : 1

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
          average_value = tostring(local.running_per_replica)
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
