# Cloud Run's resources for each GPU, and the limits of a start.
# Source: https://docs.cloud.google.com/run/docs/configuring/services/cpu (vCPU and memory table) and
# https://docs.cloud.google.com/run/docs/configuring/services/gpu, read 2026-10-07; no maximum is stated there for the
# RTX shape.

locals {
  # GiB that a container may have, by its vCPUs.
  memory_ranges_gib = {
    "1" = { min = 0.5, max = 4 }
    "2" = { min = 0.5, max = 8 }
    "4" = { min = 2, max = 16 }
    "6" = { min = 4, max = 24 }
    "8" = { min = 4, max = 32 }
  }
  gpu_shapes = {
    "nvidia-l4" = {
      cpus           = [4, 6, 8]
      min_memory_gib = 16
      regions        = ["asia-south1", "asia-southeast1", "europe-west1", "europe-west4", "us-central1", "us-east4"]
    }
    "nvidia-rtx-pro-6000" = {
      cpus           = null # any number from 20
      min_memory_gib = 80
      regions        = ["asia-south2", "asia-southeast1", "europe-west4", "us-central1"]
    }
    "none" = {
      cpus           = [1, 2, 4, 6, 8]
      min_memory_gib = 2
      regions        = [var.region]
    }
  }
  # The GPUs that `levserve prewarm --target` compiles for, by its names.
  bundle_targets = { "nvidia-l4" = "l4", "nvidia-rtx-pro-6000" = "rtx-pro-6000" }

  min_rtx_cpu  = 20
  has_gpu      = var.gpu_type != "none"
  gpu_shape    = lookup(local.gpu_shapes, var.gpu_type, local.gpu_shapes["none"])
  memory_range = lookup(local.memory_ranges_gib, tostring(var.cpu), { min = local.gpu_shape.min_memory_gib, max = null })
  # All containers of an instance share these; the RTX shape is larger and its maximum is not documented.
  max_instance_cpu = var.gpu_type == "nvidia-rtx-pro-6000" ? null : 8

  # The metrics sidecar needs resources in addition to the service's container.
  sidecar_cpu        = 1
  sidecar_memory_gib = 1

  max_startup_budget_s = local.has_gpu ? 1800 : 240
  startup_budget_s     = coalesce(var.startup_budget_s, local.max_startup_budget_s)
  startup_period_s     = 10
}

check "gpu_is_offered_in_the_region" {
  assert {
    condition     = contains(local.gpu_shape.regions, var.region)
    error_message = "In October 2026 ${var.gpu_type} was not offered in ${var.region}, but in ${join(", ", local.gpu_shape.regions)}."
  }
}
