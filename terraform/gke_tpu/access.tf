# Workload Identity: a pod acts as its Google service account without a key file.

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
