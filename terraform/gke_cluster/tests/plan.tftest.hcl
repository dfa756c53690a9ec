mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

variables {
  project_id         = "my-project"
  zone               = "us-central1-a"
  network            = "levserve"
  subnetwork         = "levserve-us-central1"
  node_account_email = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "nothing_has_an_address_on_the_internet" {
  command = plan

  assert {
    condition     = google_container_cluster.main.private_cluster_config[0].enable_private_nodes && !google_container_cluster.main.control_plane_endpoints_config[0].ip_endpoints_config[0].enabled
    error_message = "Neither nodes nor the control plane may have an address on the internet."
  }
}

run "the_cluster_is_hard_to_delete" {
  command = plan

  assert {
    condition     = google_container_cluster.main.deletion_protection
    error_message = "A destroy must be refused by default."
  }
}

run "upgrades_wait_for_the_weekend" {
  command = plan

  assert {
    condition     = google_container_cluster.main.maintenance_policy[0].recurring_window[0].recurrence == "FREQ=WEEKLY;BYDAY=SA,SU"
    error_message = "An upgrade replaces TPU pods, so it needs a window."
  }
}

run "pods_are_scraped" {
  command = plan

  assert {
    condition     = google_container_cluster.main.monitoring_config[0].managed_prometheus[0].enabled
    error_message = "Managed Prometheus must scrape the pods."
  }
}

run "the_adapter_is_a_release" {
  command = plan

  assert {
    condition     = strcontains(output.adapter_command, "/cm-sd-adapter-v0.16.10/") && !strcontains(output.adapter_command, "/master/")
    error_message = "A branch changes under the cluster."
  }

  assert {
    condition     = output.kubernetes_context == "gke_my-project_us-central1_levserve" && endswith(output.credentials_command, "--dns-endpoint")
    error_message = "The next root needs the context of this cluster."
  }
}

run "a_network_with_a_proxy_subnet_gets_no_second" {
  command = plan
  variables {
    proxy_subnet_created = false
  }

  assert {
    condition     = length(google_compute_subnetwork.proxies) == 0
    error_message = "A network has one proxy-only subnet in a region."
  }
}
