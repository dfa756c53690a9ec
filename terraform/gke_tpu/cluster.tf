resource "google_container_cluster" "main" {
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

  release_channel {
    channel = "REGULAR"
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
  }

  lifecycle {
    ignore_changes = [node_config, initial_node_count]
  }
}
