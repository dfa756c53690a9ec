# TPU machines and their topologies, with the number of VMs of each.
# Source: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, read 2026-11; v5e's slices of several VMs
# are from memory there.
#
# One VM is served by a Deployment. A topology of several VMs is one replica of a LeaderWorkerSet, its node pool needs
# placement_policy { type = "COMPACT", tpu_topology } and node_count = VMs; `num_hosts` below is where that would
# branch.

locals {
  tpu_machines = {
    "ct5lp-hightpu-1t"  = { chips = 1, vcpus = 24, memory_gb = 48, accelerator = "tpu-v5-lite-podslice", topologies = { "1x1" = 1 } }
    "ct5lp-hightpu-4t"  = { chips = 4, vcpus = 112, memory_gb = 192, accelerator = "tpu-v5-lite-podslice", topologies = { "2x2" = 1, "2x4" = 2, "4x4" = 4, "4x8" = 8 } }
    "ct5lp-hightpu-8t"  = { chips = 8, vcpus = 224, memory_gb = 384, accelerator = "tpu-v5-lite-podslice", topologies = { "2x4" = 1 } }
    "ct6e-standard-1t"  = { chips = 1, vcpus = 44, memory_gb = 176, accelerator = "tpu-v6e-slice", topologies = { "1x1" = 1 } }
    "ct6e-standard-4t"  = { chips = 4, vcpus = 180, memory_gb = 720, accelerator = "tpu-v6e-slice", topologies = { "2x2" = 1, "2x4" = 2, "4x4" = 4, "4x8" = 8, "8x8" = 16, "8x16" = 32, "16x16" = 64 } }
    "ct6e-standard-8t"  = { chips = 8, vcpus = 180, memory_gb = 1440, accelerator = "tpu-v6e-slice", topologies = { "2x4" = 1 } }
    "tpu7x-standard-4t" = { chips = 4, vcpus = 224, memory_gb = 960, accelerator = "tpu7x", topologies = { "2x2x1" = 1, "2x2x2" = 2, "2x2x4" = 4, "2x4x4" = 8, "4x4x4" = 16 } }
  }

  tpu       = lookup(local.tpu_machines, var.tpu_machine_type, { chips = 1, vcpus = 24, memory_gb = 48, accelerator = "", topologies = {} })
  num_hosts = lookup(local.tpu.topologies, var.tpu_topology, 0) # 0: the machine does not form this topology
  chips     = local.tpu.chips

  # The machines that `levserve prewarm --target` compiles for, by its names.
  bundle_targets = {
    "ct5lp-hightpu-1t" = "v5e-1"
    "ct5lp-hightpu-4t" = "v5e-4"
    "ct5lp-hightpu-8t" = "v5e-8"
    "ct6e-standard-1t" = "v6e-1"
    "ct6e-standard-4t" = "v6e-4"
    "ct6e-standard-8t" = "v6e-8"
  }

  # Half of the machine: a pod without requests is the first that a node under pressure evicts. The chips alone already
  # keep a second pod off the machine.
  pod_resources = {
    requests = {
      cpu              = tostring(floor(local.tpu.vcpus / 2))
      memory           = "${floor(local.tpu.memory_gb / 2)}G"
      "google.com/tpu" = tostring(local.chips)
    }
    limits = { "google.com/tpu" = tostring(local.chips) }
  }
}
