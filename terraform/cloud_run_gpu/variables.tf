variable "alert_start_s" {
  description = "Seconds that a start may take (95th percentile) before an alert."
  type        = number
  default     = 120

  validation {
    condition     = var.alert_start_s > 0 && var.alert_start_s <= 1800
    error_message = "alert_start_s must be between 1 and 1800: no start lasts longer than Cloud Run's limit."
  }
}

variable "batch" {
  description = "A job that answers a batch in shards: input and output are folders of buckets, tasks their number at once, timeout_s the seconds of a task (12 h at most with a GPU), args more arguments such as [\"--single\"]. Null: no job."
  type = object({
    input     = string
    output    = string
    tasks     = optional(number, 1)
    timeout_s = optional(number, 43200)
    args      = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.batch == null ? true : alltrue([for uri in [var.batch.input, var.batch.output] : can(regex("^gs://[a-z0-9._-]+/.+", uri))])
    error_message = "batch.input and batch.output must be folders of buckets: gs://BUCKET/FOLDER."
  }

  validation {
    condition     = var.batch == null ? true : !startswith("${trimsuffix(var.batch.output, "/")}/", "${trimsuffix(var.batch.input, "/")}/")
    error_message = "batch.output must not lie inside batch.input: the answers would become input."
  }

  validation {
    condition     = var.batch == null ? true : var.batch.tasks >= 1 && var.batch.tasks <= 10000 && var.batch.tasks == floor(var.batch.tasks)
    error_message = "batch.tasks must be a whole number from 1 to 10000."
  }

  validation {
    condition     = var.batch == null ? true : var.batch.timeout_s >= 60 && var.batch.timeout_s <= local.max_task_s
    error_message = "batch.timeout_s must be from 60 to 43200 with a GPU, to 604800 without."
  }

  validation {
    condition     = var.batch == null || var.model_uri != null
    error_message = "A batch is answered by one model: set model_uri, not a catalogue."
  }
}

variable "bundle_bucket_name" {
  description = "The bundle bucket of the foundation root."
  type        = string
  default     = ""
}

variable "cache_gib" {
  description = "Size of the cache volume if model_cache is \"disk\" or \"memory\": the checkpoint and a little more."
  type        = number
  default     = 20

  validation {
    condition     = var.cache_gib >= 1 && var.cache_gib == floor(var.cache_gib)
    error_message = "cache_gib must be a whole number of at least 1."
  }

  validation {
    condition     = var.model_cache != "disk" || var.cache_gib >= 10
    error_message = "An ephemeral disk has at least 10 GiB: raise cache_gib, or choose model_cache = \"memory\"."
  }

  validation {
    condition     = var.model_cache != "memory" || var.cache_gib + 8 <= var.memory_gib
    error_message = "A cache in memory counts against memory_gib, and the service needs another 8 GiB: lower cache_gib, raise memory_gib, or choose model_cache = \"none\"."
  }
}

variable "catalogue_prefix" {
  description = "GCS_BUCKET and GCS_MODEL_PREFIX: the folder of the model bucket whose folders are models, which requests load; \"\" is the whole bucket. In place of model_uri."
  type        = string
  default     = null
}

variable "cpu" {
  description = "Number of vCPUs of the service's container: 4, 6 or 8 with nvidia-l4, at least 20 with nvidia-rtx-pro-6000."
  type        = number
  default     = 8

  validation {
    condition     = local.gpu_shape.cpus == null ? var.cpu >= local.min_rtx_cpu : contains(local.gpu_shape.cpus, var.cpu)
    error_message = "${var.cpu} is not a number of vCPUs that Cloud Run offers here: without a GPU 1, 2, 4, 6 or 8; with nvidia-l4 4, 6 or 8 (8 is better); with nvidia-rtx-pro-6000 at least 20."
  }

  validation {
    condition     = local.max_instance_cpu == null ? true : var.cpu + (var.metrics_sidecar_enabled ? local.sidecar_cpu : 0) <= local.max_instance_cpu
    error_message = "Too many vCPUs: except with nvidia-rtx-pro-6000 an instance has at most 8, of which the metrics sidecar takes 1: set cpu = 6 and memory_gib = 24."
  }

  validation {
    condition     = var.cpu == floor(var.cpu)
    error_message = "cpu must be a whole number."
  }
}

variable "deletion_protection_enabled" {
  description = "Whether to refuse a destroy, or a change that replaces the service."
  type        = bool
  default     = true
}

variable "deploy_account_email" {
  description = "The deploy identity of the foundation root; it may call the service, for the smoke test."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.gserviceaccount\\.com$", var.deploy_account_email))
    error_message = "deploy_account_email must be a service account's email; take it from the foundation root's cloud_run_tfvars."
  }
}

variable "dtype" {
  description = "DTYPE: the dtype of weights and activations."
  type        = string
  default     = "auto"
}

variable "env" {
  description = "More settings of the service as environment variables, for example { KV_DTYPE = \"int8\", MAX_QUEUE_SIZE = \"64\" }; docs/reference/settings.md lists all. Never a key."
  type        = map(string)
  default     = {}
}

variable "gpu_type" {
  description = "The GPU: nvidia-l4 (24 GB), nvidia-rtx-pro-6000 (96 GB) or none."
  type        = string
  default     = "nvidia-l4"

  validation {
    condition     = contains(["nvidia-l4", "nvidia-rtx-pro-6000", "none"], var.gpu_type)
    error_message = "gpu_type must be \"nvidia-l4\", \"nvidia-rtx-pro-6000\" or \"none\": Cloud Run offers no other."
  }
}

variable "gpu_zonal_redundancy_enabled" {
  description = "Whether capacity is reserved for the failure of a zone. It costs about half as much again, and the quota of 3 GPUs in a new project does not cover it."
  type        = bool
  default     = false
}

variable "image" {
  description = "The image with tag or digest. Later deployments by gcloud or Cloud Build may change it; this root does not revert that."
  type        = string
}

variable "ingress" {
  description = "Networks that can reach the service: all, internal, or internal and a load balancer. See invokers for permission to call it."
  type        = string
  default     = "INGRESS_TRAFFIC_ALL"

  validation {
    condition     = contains(["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.ingress)
    error_message = "ingress must be INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  }
}

variable "invokers" {
  description = "IAM members who may call the service, for example [\"group:app@example.com\"]. Empty: only the deploy identity."
  type        = list(string)
  default     = []

  validation {
    condition     = length(setintersection(var.invokers, ["allUsers", "allAuthenticatedUsers"])) == 0
    error_message = "invokers names people and services. To open the service to everyone with a key, set public_access_enabled."
  }
}

variable "key_file_secret" {
  description = "A secret in Secret Manager whose content is the YAML file API_KEY_FILE: more keys with names and weights, beside API_KEY. It is mounted as a volume, never an environment variable."
  type        = string
  default     = null
}

variable "log_metric_prefix" {
  description = "Prefix of the log-based metrics: the foundation root's name."
  type        = string
  default     = "levserve"
}

variable "max_cached_models" {
  description = "MAX_CACHED_MODELS: models of a catalogue that are in memory at once. Null: 2."
  type        = number
  default     = null
}

variable "max_instances" {
  description = "Maximum number of instances of one revision. A new project has 20 vCPU, 40 GiB and 3 GPUs for Cloud Run in a region: one instance of 8 vCPU and 32 GiB."
  type        = number
  default     = 1

  validation {
    condition     = var.max_instances >= 1 && var.max_instances == floor(var.max_instances)
    error_message = "max_instances must be a whole number of at least 1."
  }
}

variable "max_model_len" {
  description = "MAX_MODEL_LEN: context length in tokens. Null: the model's own, as memory allows."
  type        = number
  default     = null
}

variable "memory_gib" {
  description = "Memory of the service's container: up to 4 GiB with 1 vCPU, 8 with 2, 16 with 4, 24 with 6, 32 with 8; at least 16 with nvidia-l4, 80 with nvidia-rtx-pro-6000."
  type        = number
  default     = 32

  validation {
    condition     = var.memory_gib >= max(local.gpu_shape.min_memory_gib, local.memory_range.min)
    error_message = "Too little memory: with nvidia-l4 memory_gib must be at least 16 (32 is better), with nvidia-rtx-pro-6000 at least 80, without a GPU at least 2 (4 with 6 or 8 vCPU)."
  }

  validation {
    condition     = local.memory_range.max == null ? true : var.memory_gib <= local.memory_range.max
    error_message = "Too much memory for ${var.cpu} vCPU: Cloud Run allows at most 4 GiB with 1 vCPU, 8 with 2, 16 with 4, 24 with 6 and 32 with 8."
  }
}

variable "metrics_sidecar_enabled" {
  description = "Whether a Managed Prometheus sidecar sends /metrics to Cloud Monitoring. It takes 1 vCPU and 1 GiB of the instance; without it there are no alerts on KV pages and slots."
  type        = bool
  default     = false

  validation {
    condition     = !var.metrics_sidecar_enabled || !contains(keys(var.secret_env), "API_KEY")
    error_message = "With API_KEY set, /metrics requires the key, which the sidecar cannot send: protect the service by IAM alone, or set metrics_sidecar_enabled = false."
  }
}

variable "metrics_sidecar_image" {
  description = "The sidecar's image."
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/cloud-run-gmp-sidecar/cloud-run-gmp-sidecar:1.2.0"
}

variable "min_instances" {
  description = "Instances that are always ready, billed in full. 0 scales to zero."
  type        = number
  default     = 0

  validation {
    condition     = var.min_instances >= 0 && var.min_instances <= var.max_instances && var.min_instances == floor(var.min_instances)
    error_message = "min_instances must be a whole number from 0 to max_instances."
  }
}

variable "model_bucket_name" {
  description = "The model bucket of the foundation root."
  type        = string
  default     = ""
}

variable "model_cache" {
  description = "Storage of a downloaded checkpoint: \"none\" streams it from the bucket to the GPU; \"disk\" is an ephemeral disk (Preview, billed by size); \"memory\" counts against memory_gib."
  type        = string
  default     = "none"
}

variable "model_name" {
  description = "MODEL_NAME: the name that clients send as `model`, or several, separated by commas. Null: the last part of model_uri."
  type        = string
  default     = null
}

variable "model_uri" {
  description = "MODEL_URI: the checkpoint in the model bucket, for example gs://my-project-models/my-model. Null: a catalogue is served."
  type        = string
  default     = null
}

variable "models" {
  description = "MODELS: the only models of the catalogue to serve, loaded at the start. Empty: all, each at the first request for it."
  type        = list(string)
  default     = []
}

variable "models_config_uri" {
  description = "MODELS_CONFIG: a YAML file in the model bucket that describes models, for example gs://my-project-models/models.yaml. Without catalogue_prefix only those are served."
  type        = string
  default     = null
}

variable "network" {
  description = "The network of the foundation root."
  type        = string
}

variable "notification_channels" {
  description = "Recipients of alerts: ids such as projects/PROJECT/notificationChannels/NUMBER."
  type        = list(string)
  default     = []
}

variable "prewarm_account_email" {
  description = "The prewarm identity of the foundation root."
  type        = string
}

variable "prewarm_image" {
  description = "The image of the prewarm job. A Levanter checkpoint needs levserve-prewarm, which also converts it for the service; null: image, enough for a Hugging Face checkpoint."
  type        = string
  default     = null
}

variable "project_id" {
  description = "The Google Cloud project."
  type        = string
}

variable "public_access_enabled" {
  description = "Whether everyone may call the service. Then only API_KEY protects it."
  type        = bool
  default     = false

  validation {
    condition     = !var.public_access_enabled || contains(keys(var.secret_env), "API_KEY")
    error_message = "A public service without a key serves everyone at your cost: name a secret for API_KEY in secret_env."
  }
}

variable "region" {
  description = "The region, the same as the foundation root's."
  type        = string
  default     = "us-central1"
}

variable "request_timeout_s" {
  description = "REQUEST_TIMEOUT: seconds that one request may take. Cloud Run waits longer, for a cold start before it."
  type        = number
  default     = 300
}

variable "secret_env" {
  description = "Settings that are keys: environment variable to the name of a secret in Secret Manager, for example { API_KEY = \"levserve-api-key\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for secret in values(var.secret_env) : can(regex("^[a-zA-Z0-9_-]{1,255}$", secret))])
    error_message = "secret_env holds names of secrets in Secret Manager (letters, digits, '-' and '_'), not the keys themselves."
  }
}

variable "serve_account_email" {
  description = "The serving identity of the foundation root."
  type        = string
}

variable "service_name" {
  description = "Name of the Cloud Run service; the prewarm job is NAME-prewarm."
  type        = string
  default     = "levserve"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", var.service_name))
    error_message = "service_name must be 2 to 32 of a-z, 0-9 and '-', starting with a letter: a tag's address has to fit it into one DNS label."
  }
}

variable "slots" {
  description = "MAX_NUM_SEQS: sequences that run at the same time on an instance. As many more may wait; Cloud Run's concurrency is the sum."
  type        = number
  default     = 16
}

variable "startup_budget_s" {
  description = "Seconds that a start may take before the instance is stopped. Null: Cloud Run's maximum."
  type        = number
  default     = null

  validation {
    condition     = var.startup_budget_s == null ? true : var.startup_budget_s <= local.max_startup_budget_s
    error_message = "startup_budget_s is over Cloud Run's limit: 1800 s with a GPU, 240 s without."
  }

  validation {
    condition     = var.startup_budget_s == null ? true : var.startup_budget_s >= 60 && var.startup_budget_s % 10 == 0
    error_message = "startup_budget_s must be at least 60 and a multiple of the probe's 10 s."
  }
}

variable "startup_cpu_boost_enabled" {
  description = "Whether Cloud Run adds CPU during the start. One team measured it slower on the 20-vCPU shape: measure."
  type        = bool
  default     = true
}

variable "subnetwork" {
  description = "The subnet of the foundation root, with Private Google Access."
  type        = string
}
