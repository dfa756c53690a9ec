# Weights are read over Google's network: Private Google Access, no external address, no NAT.

resource "google_compute_network" "main" {
  name                    = var.name
  auto_create_subnetworks = false

  depends_on = [google_project_service.main]
}

resource "google_compute_subnetwork" "main" {
  name                     = "${var.name}-${var.region}"
  network                  = google_compute_network.main.id
  region                   = var.region
  ip_cidr_range            = var.subnet_cidr
  private_ip_google_access = true
}
