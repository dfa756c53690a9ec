# What a pod may: it acts as its Google service account without a key file (Workload Identity), its namespace admits no
# pod that asks for more than these, and it speaks to its clients and to Google alone.

locals {
  namespace = coalesce(var.namespace, var.service_name)
  identities = {
    serve   = var.serve_account_email
    prewarm = var.prewarm_account_email
  }
}

resource "kubernetes_namespace_v1" "main" {
  metadata {
    name = local.namespace
    # Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
    labels = { "pod-security.kubernetes.io/enforce" = var.run_as_user == 0 ? "baseline" : "restricted" }
  }
}

resource "kubernetes_network_policy_v1" "main" {
  metadata {
    name      = var.service_name
    namespace = kubernetes_namespace_v1.main.metadata[0].name
  }

  spec {
    pod_selector {
      match_expressions {
        key      = "app"
        operator = "In"
        values   = [var.service_name, "${var.service_name}-prewarm"]
      }
    }

    policy_types = ["Ingress", "Egress"]

    # Clients, the gateway's health checks and the collector of metrics; the node's probes are always let in.
    ingress {
      ports {
        port     = tostring(local.port)
        protocol = "TCP"
      }
    }

    # Names; Google's APIs and, over both schemes, images of requests; the metadata server, which gives the identity; a
    # collector of traces.
    # Source: https://cloud.google.com/kubernetes-engine/docs/how-to/network-policy#network-policy-and-workload-identity
    dynamic "egress" {
      for_each = [["UDP", 53], ["TCP", 53], ["TCP", 80], ["TCP", 443], ["TCP", 988], ["TCP", 4318]]
      content {
        ports {
          protocol = egress.value[0]
          port     = tostring(egress.value[1])
        }
      }
    }
  }
}

resource "kubernetes_service_account_v1" "main" {
  for_each = local.identities

  metadata {
    name        = "${var.service_name}-${each.key}"
    namespace   = kubernetes_namespace_v1.main.metadata[0].name
    annotations = { "iam.gke.io/gcp-service-account" = each.value }
  }

  automount_service_account_token = false
}

resource "google_service_account_iam_member" "pods_act_as" {
  for_each = local.identities

  service_account_id = "projects/${var.project_id}/serviceAccounts/${each.value}"
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project_id}.svc.id.goog[${local.namespace}/${var.service_name}-${each.key}]"
}
