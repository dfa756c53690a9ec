# Custom resources for scraping and the gateway. They are installed through a chart of one line, because the kubernetes
# provider cannot plan a custom resource before its cluster exists.

locals {
  key_secret = module.settings.key_secret

  pod_monitoring = {
    apiVersion = "monitoring.googleapis.com/v1"
    kind       = "PodMonitoring"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec = {
      selector = { matchLabels = local.pod_labels }
      endpoints = [merge(
        { port = "http", path = "/metrics", interval = "15s" },
        # /metrics requires the key too; the collector reads it from the same secret.
        local.key_secret == null ? {} : { authorization = { type = "Bearer", credentials = { secret = { name = local.key_secret, key = "API_KEY" } } } },
      )]
    }
  }

  collector_role = {
    apiVersion = "rbac.authorization.k8s.io/v1"
    kind       = "Role"
    metadata   = { name = "${var.service_name}-metrics-key", namespace = local.namespace }
    rules      = [{ apiGroups = [""], resources = ["secrets"], resourceNames = [coalesce(local.key_secret, "none")], verbs = ["get", "list", "watch"] }]
  }

  collector_role_binding = {
    apiVersion = "rbac.authorization.k8s.io/v1"
    kind       = "RoleBinding"
    metadata   = { name = "${var.service_name}-metrics-key", namespace = local.namespace }
    roleRef    = { apiGroup = "rbac.authorization.k8s.io", kind = "Role", name = "${var.service_name}-metrics-key" }
    subjects   = [{ kind = "ServiceAccount", name = "collector", namespace = "gmp-system" }]
  }

  of_service_ref = { group = "", kind = "Service", name = var.service_name }

  gateway = {
    apiVersion = "gateway.networking.k8s.io/v1"
    kind       = "Gateway"
    metadata = merge(
      { name = var.service_name, namespace = local.namespace },
      var.gateway == "external" ? { annotations = { "networking.gke.io/certmap" = var.certificate_map } } : {},
    )
    spec = merge(
      {
        gatewayClassName = var.gateway == "external" ? "gke-l7-global-external-managed" : "gke-l7-rilb"
        listeners = [{
          name     = "http"
          protocol = var.gateway == "external" ? "HTTPS" : "HTTP"
          port     = var.gateway == "external" ? 443 : 80
        }]
      },
      var.gateway == "external" ? { addresses = [{ type = "NamedAddress", value = google_compute_global_address.gateway[0].name }] } : {},
    )
  }

  http_route = {
    apiVersion = "gateway.networking.k8s.io/v1"
    kind       = "HTTPRoute"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec = merge(
      {
        parentRefs = [{ name = var.service_name }]
        rules      = [{ backendRefs = [{ name = var.service_name, port = 80 }] }]
      },
      var.gateway == "external" ? { hostnames = [var.hostname] } : {},
    )
  }

  # The load balancer's default of 30 s would cut off longer answers.
  backend_policy = {
    apiVersion = "networking.gke.io/v1"
    kind       = "GCPBackendPolicy"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec = {
      default   = { timeoutSec = var.request_timeout_s + 30, connectionDraining = { drainingTimeoutSec = local.drain_s } }
      targetRef = local.of_service_ref
    }
  }

  health_check_policy = {
    apiVersion = "networking.gke.io/v1"
    kind       = "HealthCheckPolicy"
    metadata   = { name = var.service_name, namespace = local.namespace }
    spec = {
      default = {
        checkIntervalSec = 10
        timeoutSec       = 5
        config           = { type = "HTTP", httpHealthCheck = { port = local.port, requestPath = "/health/ready" } }
      }
      targetRef = local.of_service_ref
    }
  }

  manifests = concat(
    [local.pod_monitoring],
    [for manifest in [local.collector_role, local.collector_role_binding] : manifest if local.key_secret != null],
    [for manifest in [local.scaler_authentication, local.scaled_object] : manifest if var.min_replicas == 0],
    [for manifest in [local.gateway, local.http_route, local.backend_policy, local.health_check_policy] : manifest if var.gateway != "none"],
  )
}

resource "helm_release" "manifests" {
  name      = "${var.service_name}-manifests"
  namespace = kubernetes_namespace_v1.main.metadata[0].name
  chart     = "${path.module}/chart"
  values    = [yamlencode({ manifests = local.manifests })]

  depends_on = [kubernetes_service_v1.main]
}

resource "google_compute_global_address" "gateway" {
  count = var.gateway == "external" ? 1 : 0

  project = var.project_id
  name    = "${var.service_name}-gateway"
}
