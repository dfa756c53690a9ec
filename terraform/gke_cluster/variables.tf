variable "cluster_name" {
  description = "Name of the cluster."
  type        = string
  default     = "levserve"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,38}[a-z0-9]$", var.cluster_name))
    error_message = "cluster_name must be 2 to 40 of a-z, 0-9 and '-', starting with a letter."
  }
}

variable "deletion_protection_enabled" {
  description = "Whether to refuse a destroy, or a change that replaces the cluster."
  type        = bool
  default     = true
}

variable "keda_version" {
  description = "Release of KEDA, without the v."
  type        = string
  default     = "2.17.2"

  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+$", var.keda_version))
    error_message = "keda_version must be a release such as \"2.17.2\": a branch changes under the cluster."
  }
}

variable "maintenance_window" {
  description = "When GKE may upgrade the control plane and nodes: start and end of the first window in UTC, and its recurrence as an RRULE. At least 48 hours in any 32 days."
  type        = object({ start_time = string, end_time = string, recurrence = string })
  default = {
    start_time = "2026-01-03T02:00:00Z"
    end_time   = "2026-01-03T10:00:00Z"
    recurrence = "FREQ=WEEKLY;BYDAY=SA,SU"
  }

  validation {
    condition     = alltrue([for time in [var.maintenance_window.start_time, var.maintenance_window.end_time] : can(formatdate("YYYY", time))]) && startswith(var.maintenance_window.recurrence, "FREQ=")
    error_message = "maintenance_window needs start_time and end_time such as \"2026-01-03T02:00:00Z\" and a recurrence such as \"FREQ=WEEKLY;BYDAY=SA,SU\"."
  }
}

variable "metrics_adapter_version" {
  description = "Release of custom-metrics-stackdriver-adapter, without the v."
  type        = string
  default     = "0.16.10"

  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+$", var.metrics_adapter_version))
    error_message = "metrics_adapter_version must be a release such as \"0.16.10\": a branch changes under the cluster."
  }
}

variable "network" {
  description = "The network of the foundation root."
  type        = string
}

variable "node_account_email" {
  description = "The identity of the nodes, from the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.gserviceaccount\\.com$", var.node_account_email))
    error_message = "node_account_email must be a service account's email; take it from the foundation root's gke_cluster_tfvars."
  }
}

variable "project_id" {
  description = "The Google Cloud project."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id (6 to 30 of a-z, 0-9 and '-'), neither its name nor its number."
  }
}

variable "proxy_subnet_cidr" {
  description = "Address range of the internal gateway's proxies; must not overlap the foundation root's subnet_cidr."
  type        = string
  default     = "10.9.0.0/23"

  validation {
    condition     = can(cidrhost(var.proxy_subnet_cidr, 0)) && try(tonumber(split("/", var.proxy_subnet_cidr)[1]) <= 26, false)
    error_message = "proxy_subnet_cidr must be an address range of /26 or larger, such as \"10.9.0.0/23\"."
  }
}

variable "proxy_subnet_created" {
  description = "Whether the internal gateways' proxy-only subnet is created; a network has one per region, so false if there is one."
  type        = bool
  default     = true
}

variable "region" {
  description = "The region, the same as the foundation root's."
  type        = string
  default     = "us-central1"
}

variable "subnetwork" {
  description = "The subnet of the foundation root, with Private Google Access."
  type        = string
}

variable "zone" {
  description = "Zone of the system's nodes, for example us-central1-a; choose that of the TPUs."
  type        = string

  validation {
    condition     = can(regex("^${var.region}-[a-z]$", var.zone))
    error_message = "zone must be a zone of region, such as \"us-central1-a\" in us-central1."
  }
}
