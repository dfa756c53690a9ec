terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 8.0"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.0"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 3.0"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region

  default_labels = {
    app = "levserve"
  }
}

data "google_client_config" "main" {}

# The DNS endpoint of the cluster: protected by IAM, with a public certificate, reachable from a laptop and from Cloud
# Build.
locals {
  cluster_host = "https://${google_container_cluster.main.control_plane_endpoints_config[0].dns_endpoint_config[0].endpoint}"
}

provider "kubernetes" {
  host  = local.cluster_host
  token = data.google_client_config.main.access_token
}

provider "helm" {
  kubernetes = {
    host  = local.cluster_host
    token = data.google_client_config.main.access_token
  }
}
