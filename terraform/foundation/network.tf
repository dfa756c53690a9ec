# Weights are read over Google's network: Private Google Access, no external address, no NAT. An existing network is used
# as it is; its subnet needs Private Google Access and a /26 or more.

locals {
  network    = var.network == null ? google_compute_network.main[0].name : var.network
  subnetwork = var.network == null ? google_compute_subnetwork.main[0].name : var.subnetwork
}

resource "google_compute_network" "main" {
  count = var.network == null ? 1 : 0

  project                 = var.project_id
  name                    = var.name
  auto_create_subnetworks = false

  depends_on = [google_project_service.main]
}

resource "google_compute_subnetwork" "main" {
  count = var.network == null ? 1 : 0

  project                  = var.project_id
  name                     = "${var.name}-${var.region}"
  network                  = google_compute_network.main[0].id
  region                   = var.region
  ip_cidr_range            = var.subnet_cidr
  private_ip_google_access = true
}
