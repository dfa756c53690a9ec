# Cloud Run's resources for each GPU, and the limits of a start.
# Source: https://cloud.google.com/run/docs/configuring/services/gpu, read 2026-10-07; no maximum is stated there for
# the RTX shape.

locals {
  gpu_shapes = {
    "nvidia-l4" = {
      min_cpu        = 4
      min_memory_gib = 16
      max_cpu        = 8
      max_memory_gib = 32
      gpu_memory_gib = 24
      regions        = ["asia-south1", "asia-southeast1", "europe-west1", "europe-west4", "us-central1", "us-east4"]
    }
    "nvidia-rtx-pro-6000" = {
      min_cpu        = 20
      min_memory_gib = 80
      max_cpu        = null
      max_memory_gib = null
      gpu_memory_gib = 96
      regions        = ["asia-south2", "asia-southeast1", "europe-west4", "us-central1"]
    }
  }
  has_gpu   = var.gpu_type != "none"
  gpu_shape = lookup(local.gpu_shapes, var.gpu_type, { min_cpu = 1, min_memory_gib = 2, max_cpu = 8, max_memory_gib = 32, gpu_memory_gib = 0, regions = [var.region] })

  # The metrics sidecar needs resources in addition to the service's container.
  sidecar_cpu        = 1
  sidecar_memory_gib = 1

  max_startup_budget_s = local.has_gpu ? 1800 : 240
  startup_budget_s     = coalesce(var.startup_budget_s, local.max_startup_budget_s)
  startup_period_s     = 10

  # As many requests wait as run: Cloud Run sends any further one to another instance, so that it does not get a 429.
  concurrency = 2 * var.slots
}

check "gpu_is_offered_in_the_region" {
  assert {
    condition     = contains(local.gpu_shape.regions, var.region)
    error_message = "In October 2026 ${var.gpu_type} was not offered in ${var.region}, but in ${join(", ", local.gpu_shape.regions)}."
  }
}
