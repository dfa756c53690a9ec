variable "alert_email" {
  description = "Address that gets alerts. Empty: they are shown in the console alone."
  type        = string
  default     = ""

  validation {
    condition     = var.alert_email == "" || can(regex("^[^@ ]+@[^@ ]+[.][^@ ]+$", var.alert_email))
    error_message = "alert_email must be an address of e-mail, such as \"ops@example.com\"."
  }
}

variable "bundle_bucket_created" {
  description = "Whether the bundle bucket is created; false uses one that exists."
  type        = bool
  default     = true
}

variable "bundle_bucket_name" {
  description = "Name of the bucket for bundles (compiled executables). Bundles are native code: only the prewarm identity may write them."
  type        = string
  default     = ""

  validation {
    condition     = var.bundle_bucket_name != ""
    error_message = "The bundle bucket has no name: set bundle_bucket_name, for example \"my-project-levserve-bundles\"."
  }

  validation {
    condition     = var.bundle_bucket_name == "" || can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", var.bundle_bucket_name))
    error_message = "bundle_bucket_name must be a bucket's name alone: 3 to 63 of a-z, 0-9, '-', '_' and '.', without gs:// and without a folder."
  }

  validation {
    condition     = var.bundle_bucket_name != var.model_bucket_name || var.bundle_bucket_name == ""
    error_message = "bundle_bucket_name and model_bucket_name are the same bucket: everyone who can upload a model could then plant native code. Use a separate bucket for bundles."
  }
}

variable "data_deletion_enabled" {
  description = "Whether a destroy may delete checkpoints and bundles with their buckets. Apply it, then destroy."
  type        = bool
  default     = false
}

variable "images_kept" {
  description = "Number of the newest images per name, and so per accelerator, that the registry keeps, of any age."
  type        = number
  default     = 5

  validation {
    condition     = var.images_kept >= 2 && var.images_kept == floor(var.images_kept)
    error_message = "images_kept must be a whole number of at least 2: the image in service and the one to roll back to."
  }
}

variable "model_bucket_created" {
  description = "Whether the model bucket is created; false uses one that exists."
  type        = bool
  default     = true
}

variable "model_bucket_name" {
  description = "Name of the bucket for checkpoints."
  type        = string
  default     = ""

  validation {
    condition     = var.model_bucket_name != ""
    error_message = "The model bucket has no name: set model_bucket_name, for example \"my-project-levserve-models\"."
  }

  validation {
    condition     = var.model_bucket_name == "" || can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", var.model_bucket_name))
    error_message = "model_bucket_name must be a bucket's name alone: 3 to 63 of a-z, 0-9, '-', '_' and '.', without gs:// and without a folder."
  }
}

variable "model_writers" {
  description = "IAM members who may upload checkpoints, for example [\"group:ml@example.com\"]. A training job's service account belongs here."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.model_writers : !contains(["allUsers", "allAuthenticatedUsers"], m) && can(regex("^[a-zA-Z]+:", m))])
    error_message = "model_writers must be IAM members such as \"group:ml@example.com\"; allUsers and allAuthenticatedUsers may not write models."
  }
}

variable "name" {
  description = "Prefix of everything that this root creates: network, registry, service accounts."
  type        = string
  default     = "levserve"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 22 of a-z, 0-9 and '-', starting with a letter: service accounts allow no more than 30 with their suffix."
  }
}

variable "network" {
  description = "An existing network of this project. Null: one is created."
  type        = string
  default     = null
}

variable "noncurrent_days" {
  description = "Days that a replaced or deleted checkpoint file can still be restored."
  type        = number
  default     = 7

  validation {
    condition     = var.noncurrent_days >= 1
    error_message = "noncurrent_days must be at least 1, otherwise an overwritten checkpoint is lost at once."
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

variable "region" {
  description = "Region of the buckets, the registry and the network: the region where the accelerators are, so that weights never cross regions."
  type        = string
  default     = "us-central1"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as \"us-central1\", not a zone and not a multi-region."
  }
}

variable "repository" {
  description = "An existing Docker repository of this project and region in Artifact Registry. Null: one is created."
  type        = string
  default     = null
}

variable "subnet_cidr" {
  description = "Address range of the subnet. Cloud Run's direct egress takes up to twice as many addresses as instances."
  type        = string
  default     = "10.8.0.0/20"

  validation {
    condition     = can(cidrhost(var.subnet_cidr, 0)) && try(tonumber(split("/", var.subnet_cidr)[1]) <= 26, false)
    error_message = "subnet_cidr must be an address range of /26 or larger, such as \"10.8.0.0/20\": direct egress refuses smaller subnets."
  }
}

variable "subnetwork" {
  description = "The subnet of an existing network, in this region, with Private Google Access."
  type        = string
  default     = null

  validation {
    condition     = (var.subnetwork == null) == (var.network == null)
    error_message = "network and subnetwork belong together: set both to use an existing network, or neither."
  }
}
