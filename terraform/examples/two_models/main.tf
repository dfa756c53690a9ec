# Two models as two Cloud Run services, from one foundation: the roots hold no provider, so they are modules too.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 8.0"
    }
  }
}

provider "google" {
  project = "my-project"
  region  = "us-central1"
}

locals {
  models = {
    "my-8b"   = { gpu_type = "nvidia-l4", cpu = 8, memory_gib = 32, accelerator = "cuda12" }
    "my-135m" = { gpu_type = "none", cpu = 4, memory_gib = 8, accelerator = "cpu" }
  }
}

module "foundation" {
  source = "../../foundation"

  project_id         = "my-project"
  model_bucket_name  = "my-project-models"
  bundle_bucket_name = "my-project-bundles"
}

module "service" {
  source   = "../../cloud_run_gpu"
  for_each = local.models

  project_id            = "my-project"
  service_name          = each.key
  gpu_type              = each.value.gpu_type
  cpu                   = each.value.cpu
  memory_gib            = each.value.memory_gib
  image                 = "${module.foundation.image_prefix}/levserve-${each.value.accelerator}:first"
  prewarm_image         = "${module.foundation.image_prefix}/levserve-prewarm-${each.value.accelerator}:first"
  model_uri             = "gs://${module.foundation.shared.model_bucket_name}/${each.key}"
  model_bucket_name     = module.foundation.shared.model_bucket_name
  bundle_bucket_name    = module.foundation.shared.bundle_bucket_name
  network               = module.foundation.shared.network
  subnetwork            = module.foundation.shared.subnetwork
  serve_account_email   = module.foundation.shared.serve_account_email
  prewarm_account_email = module.foundation.shared.prewarm_account_email
  deploy_account_email  = module.foundation.emails["deploy"]
}

output "urls" {
  description = "The address of each model."
  value       = { for name, service in module.service : name => service.url }
}
