# The TPUs of this service. The system pool belongs to the cluster.

resource "google_container_node_pool" "tpu" {
  project        = var.project_id
  name           = "${substr(var.service_name, 0, 36)}-tpu"
  cluster        = var.cluster_name
  location       = var.region
  node_locations = [var.zone]

  # One VM is one slice: no placement_policy. A slice of several VMs has one, with tpu_topology, and node_count =
  # num_hosts.
  initial_node_count = 0

  autoscaling {
    total_min_node_count = 0
    total_max_node_count = local.num_hosts * (var.max_replicas + (var.prewarm_on_apply ? 1 : 0))
    location_policy      = "ANY"
  }

  management {
    auto_repair  = var.capacity != "flex_start" # GKE rejects auto-repair for nodes of limited lifetime
    auto_upgrade = true
  }

  # There is no spare TPU for a surge.
  upgrade_settings {
    max_surge       = 0
    max_unavailable = 1
  }

  node_config {
    machine_type     = var.tpu_machine_type
    disk_size_gb     = var.node_disk_gib
    disk_type        = var.node_disk_type
    service_account  = var.node_account_email
    oauth_scopes     = ["https://www.googleapis.com/auth/cloud-platform"]
    spot             = var.capacity == "spot"
    flex_start       = var.capacity == "flex_start"
    max_run_duration = var.capacity == "flex_start" ? "604800s" : null # 7 days, the maximum

    # Always set: otherwise a pool may consume another reservation.
    reservation_affinity {
      consume_reservation_type = var.capacity == "reservation" ? "SPECIFIC_RESERVATION" : "NO_RESERVATION"
      key                      = var.capacity == "reservation" ? "compute.googleapis.com/reservation-name" : null
      values                   = var.capacity == "reservation" ? [var.reservation_name] : null
    }

    # Image streaming: a pod starts before its image is complete.
    gcfs_config {
      enabled = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    ignore_changes = [initial_node_count]
  }
}
