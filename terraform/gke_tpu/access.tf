# Workload Identity: a pod acts as its Google service account without a key file.

locals {
  identities = {
    serve   = var.serve_account_email
    prewarm = var.prewarm_account_email
  }
}

data "google_project" "main" {
  project_id = var.project_id
}

resource "kubernetes_namespace_v1" "main" {
  metadata {
    name = var.namespace
  }

  depends_on = [google_container_node_pool.system]
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
  member             = "serviceAccount:${var.project_id}.svc.id.goog[${var.namespace}/${var.service_name}-${each.key}]"

  depends_on = [google_container_cluster.main] # the workload pool exists once there is a cluster
}

# The autoscaler's adapter reads the queue metric from Cloud Monitoring.
resource "google_project_iam_member" "metrics_adapter_reads" {
  project = var.project_id
  role    = "roles/monitoring.viewer"
  member  = "principal://iam.googleapis.com/projects/${data.google_project.main.number}/locations/global/workloadIdentityPools/${var.project_id}.svc.id.goog/subject/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter"

  depends_on = [google_container_cluster.main]
}
