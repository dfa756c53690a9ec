# A cluster with a small pool for the system. The models on it, each with its TPUs, are the root gke_tpu: a plan of
# Kubernetes resources needs a cluster that exists.

resource "google_container_cluster" "main" {
  project                  = var.project_id
  name                     = var.cluster_name
  location                 = var.region
  network                  = var.network
  subnetwork               = var.subnetwork
  networking_mode          = "VPC_NATIVE"
  datapath_provider        = "ADVANCED_DATAPATH"
  remove_default_node_pool = true
  initial_node_count       = 1
  node_locations           = [var.zone]
  deletion_protection      = var.deletion_protection_enabled
  resource_labels          = { app = "levserve" }

  enable_intranode_visibility = true

  release_channel {
    channel = "REGULAR"
  }

  # Upgrades drain nodes and replace TPU pods, so they belong in the quiet hours.
  maintenance_policy {
    recurring_window {
      start_time = var.maintenance_window.start_time
      end_time   = var.maintenance_window.end_time
      recurrence = var.maintenance_window.recurrence
    }
  }

  master_auth {
    client_certificate_config {
      issue_client_certificate = false # identities come from IAM
    }
  }

  ip_allocation_policy {} # GKE chooses the ranges of pods and services

  private_cluster_config {
    enable_private_nodes = true
  }

  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true # IAM controls access
    }
    ip_endpoints_config {
      enabled = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }

  gateway_api_config {
    channel = "CHANNEL_STANDARD"
  }

  monitoring_config {
    enable_components = ["SYSTEM_COMPONENTS", "DEPLOYMENT", "HPA", "POD"]
    managed_prometheus {
      enabled = true
    }
  }

  # For the short life of the default pool.
  node_config {
    service_account = var.node_account_email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_integrity_monitoring = true
      enable_secure_boot          = true
    }
  }

  lifecycle {
    ignore_changes = [node_config, initial_node_count]
  }
}

resource "google_container_node_pool" "system" {
  project  = var.project_id
  name     = "system"
  cluster  = google_container_cluster.main.name
  location = var.region

  autoscaling {
    total_min_node_count = 1
    total_max_node_count = 3
    location_policy      = "ANY"
  }

  management {
    auto_repair  = true
    auto_upgrade = true
  }

  node_config {
    machine_type    = "e2-standard-4"
    service_account = var.node_account_email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_integrity_monitoring = true
      enable_secure_boot          = true
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}

# Addresses of the proxies of internal gateways, once per network and region.
resource "google_compute_subnetwork" "proxies" {
  count = var.proxy_subnet_created ? 1 : 0

  project       = var.project_id
  name          = "${var.cluster_name}-proxies"
  network       = var.network
  region        = var.region
  ip_cidr_range = var.proxy_subnet_cidr
  purpose       = "REGIONAL_MANAGED_PROXY"
  role          = "ACTIVE"
}

data "google_project" "main" {
  project_id = var.project_id
}

# The autoscaler's adapter reads the metrics of the queue and of the slots from Cloud Monitoring.
resource "google_project_iam_member" "metrics_adapter_reads" {
  project = var.project_id
  role    = "roles/monitoring.viewer"
  member  = "principal://iam.googleapis.com/projects/${data.google_project.main.number}/locations/global/workloadIdentityPools/${var.project_id}.svc.id.goog/subject/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter"

  depends_on = [google_container_cluster.main]
}

# KEDA, in place of the adapter, where a service goes to 0.
resource "google_project_iam_member" "keda_reads" {
  project = var.project_id
  role    = "roles/monitoring.viewer"
  member  = "principal://iam.googleapis.com/projects/${data.google_project.main.number}/locations/global/workloadIdentityPools/${var.project_id}.svc.id.goog/subject/ns/keda/sa/keda-operator"

  depends_on = [google_container_cluster.main]
}
