variable "alert_start_s" {
  description = "Seconds that a start may take (95th percentile) before an alert."
  type        = number
  default     = 300

  validation {
    condition     = var.alert_start_s > 0
    error_message = "alert_start_s must be more than 0."
  }
}

variable "bundle_bucket_name" {
  description = "The bundle bucket of the foundation root."
  type        = string
  default     = ""
}

variable "cache_gib" {
  description = "Size of the cache if model_cache is \"disk\" or \"memory\": the checkpoint and a little more."
  type        = number
  default     = 40

  validation {
    condition     = var.cache_gib >= 1 && var.cache_gib == floor(var.cache_gib)
    error_message = "cache_gib must be a whole number of at least 1."
  }

  validation {
    condition     = var.model_cache != "disk" || var.cache_gib + 40 <= var.node_disk_gib
    error_message = "The cache does not fit on the node's disk next to the image and the system (40 GiB): raise node_disk_gib or lower cache_gib."
  }
}

variable "capacity" {
  description = "How TPUs are provisioned: \"on_demand\", \"spot\" (cheap, can be preempted at any time), \"flex_start\" (waits for capacity, up to 7 days of use) or \"reservation\"."
  type        = string
  default     = "on_demand"

  validation {
    condition     = contains(["on_demand", "spot", "flex_start", "reservation"], var.capacity)
    error_message = "capacity must be on_demand, spot, flex_start or reservation."
  }
}

variable "catalogue_prefix" {
  description = "GCS_BUCKET and GCS_MODEL_PREFIX: the folder of the model bucket whose folders are models, which requests load; \"\" is the whole bucket. In place of model_uri."
  type        = string
  default     = null
}

variable "certificate_map" {
  description = "Certificate Manager's certificate map for the external gateway."
  type        = string
  default     = null
}

variable "cluster_name" {
  description = "Name of the cluster that the gke_cluster root made."
  type        = string
  default     = "levserve"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,38}[a-z0-9]$", var.cluster_name))
    error_message = "cluster_name must be 2 to 40 of a-z, 0-9 and '-', starting with a letter."
  }
}

variable "drain_s" {
  description = "DRAIN_SECONDS: seconds that running requests have to finish when a pod stops. Null: request_timeout_s, at most 600, so that streams finish; 8 on spot."
  type        = number
  default     = null

  validation {
    condition     = var.drain_s == null ? true : var.drain_s >= 0 && var.drain_s <= 600
    error_message = "drain_s must be between 0 and 600."
  }

  validation {
    condition     = var.drain_s == null || var.capacity != "spot" ? true : var.drain_s <= 10
    error_message = "A spot TPU is preempted 30 s after its warning, of which pods get 15: drain_s must be at most 10 there."
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

variable "gateway" {
  description = "How the service is reached: \"internal\" from the network only, \"external\" from the internet over TLS, \"none\" from inside the cluster only."
  type        = string
  default     = "internal"

  validation {
    condition     = contains(["internal", "external", "none"], var.gateway)
    error_message = "gateway must be internal, external or none."
  }

  validation {
    condition     = var.gateway != "external" || contains(keys(var.secret_env), "API_KEY")
    error_message = "An external gateway without a key serves everyone at your cost: name a Kubernetes secret for API_KEY in secret_env."
  }

  validation {
    condition     = var.gateway != "external" || var.hostname != null && var.certificate_map != null
    error_message = "An external gateway requires TLS: set hostname and certificate_map."
  }
}

variable "hostname" {
  description = "DNS name of the external gateway; point it at the output gateway_address."
  type        = string
  default     = null
}

variable "image" {
  description = "The TPU image with tag or digest."
  type        = string
}

variable "key_file_secret" {
  description = "A Kubernetes secret whose key api_keys.yaml is the file API_KEY_FILE: more keys with names and weights, beside API_KEY. It is mounted as a volume, never an environment variable."
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

variable "max_model_len" {
  description = "MAX_MODEL_LEN: context length in tokens. Null: the model's own, as memory allows."
  type        = number
  default     = null
}

variable "max_replicas" {
  description = "Maximum number of replicas, each on its own TPU VM. The node pool has room for one more, to prewarm a new image."
  type        = number
  default     = 1

  validation {
    condition     = var.max_replicas >= 1 && var.max_replicas == floor(var.max_replicas)
    error_message = "max_replicas must be a whole number of at least 1."
  }
}

variable "min_replicas" {
  description = "Replicas that always run. 0 needs KEDA in the cluster and a gateway: a request to a service at rest gets 503, and starts a replica some minutes later."
  type        = number
  default     = 1

  validation {
    condition     = var.min_replicas >= 0 && var.min_replicas <= var.max_replicas && var.min_replicas == floor(var.min_replicas)
    error_message = "min_replicas must be a whole number from 0 to max_replicas."
  }

  validation {
    condition     = var.min_replicas > 0 || var.gateway != "none"
    error_message = "min_replicas = 0 needs gateway = \"internal\" or \"external\": without pods, only a gateway notices a request."
  }
}

variable "model_bucket_name" {
  description = "The model bucket of the foundation root."
  type        = string
  default     = ""
}

variable "model_cache" {
  description = "Storage of a downloaded checkpoint: \"none\" streams it from the bucket to the TPU; \"disk\" is the node's disk; \"memory\" is the node's memory."
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

variable "namespace" {
  description = "Kubernetes namespace of the service. Null: service_name."
  type        = string
  default     = null

  validation {
    condition     = var.namespace == null ? true : can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.namespace)) && !contains(["default", "kube-system"], var.namespace)
    error_message = "namespace must be a Kubernetes name (a-z, 0-9 and '-') of its own, neither default nor kube-system."
  }
}

variable "node_account_email" {
  description = "The identity of the nodes, from the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.gserviceaccount\\.com$", var.node_account_email))
    error_message = "node_account_email must be a service account's email; take it from the foundation root's gke_tpu_tfvars."
  }
}

variable "node_disk_gib" {
  description = "Size of a TPU node's boot disk."
  type        = number
  default     = 100

  validation {
    condition     = var.node_disk_gib >= 50
    error_message = "node_disk_gib must be at least 50: the image alone takes several GiB."
  }
}

variable "node_disk_type" {
  description = "Type of a TPU node's boot disk. Null: GKE's default for the machine."
  type        = string
  default     = null
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

variable "prewarm_on_apply" {
  description = "Whether an apply that changes what is compiled first runs the prewarm job and waits for it."
  type        = bool
  default     = true
}

variable "project_id" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "The region, the same as the foundation root's."
  type        = string
  default     = "us-central1"
}

variable "request_timeout_s" {
  description = "REQUEST_TIMEOUT: seconds that one request may take. The gateway waits a little longer."
  type        = number
  default     = 300
}

variable "reservation_name" {
  description = "The reservation, if capacity is \"reservation\"."
  type        = string
  default     = null

  validation {
    condition     = (var.reservation_name != null) == (var.capacity == "reservation")
    error_message = "reservation_name belongs to capacity = \"reservation\": set both or neither."
  }
}

variable "run_as_user" {
  description = "The user id of the container. 0 is root, without any capability: whether another user may open a TPU's device files depends on the node image, and Google's own manifests run as root. 10001 is the image's."
  type        = number
  default     = 0

  validation {
    condition     = var.run_as_user >= 0 && var.run_as_user == floor(var.run_as_user)
    error_message = "run_as_user must be a user id: a whole number of at least 0."
  }
}

variable "secret_env" {
  description = "Settings that are keys: environment variable to the name of a Kubernetes secret that has a key of the same name, for example { API_KEY = \"levserve-api-key\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for secret in values(var.secret_env) : can(regex("^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", secret))])
    error_message = "secret_env holds names of Kubernetes secrets (a-z, 0-9, '-' and '.'), not the keys themselves."
  }
}

variable "serve_account_email" {
  description = "The serving identity of the foundation root."
  type        = string
}

variable "service_name" {
  description = "Name of the Deployment, its Service and related resources."
  type        = string
  default     = "levserve"
}

variable "slot_utilization" {
  description = "The autoscaler adds a replica when more than this part of the slots is in use, on average. Waiting requests alone would remove replicas whose slots are full and whose queue is empty."
  type        = number
  default     = 0.75

  validation {
    condition     = var.slot_utilization > 0 && var.slot_utilization <= 1
    error_message = "slot_utilization must be above 0 and at most 1: a part of the slots."
  }
}

variable "slots" {
  description = "MAX_NUM_SEQS: sequences that run at the same time in a pod. As many more may wait."
  type        = number
  default     = 32
}

variable "startup_budget_s" {
  description = "Seconds that a start may take before the pod is restarted. Compiling for a TPU without a bundle is slow."
  type        = number
  default     = 3600

  validation {
    condition     = var.startup_budget_s >= 60 && var.startup_budget_s <= 7200 && var.startup_budget_s % 10 == 0
    error_message = "startup_budget_s must be from 60 to 7200 and a multiple of the probe's 10 s: a start that takes over two hours hangs."
  }
}

variable "tpu_machine_type" {
  description = "The TPU VM: ct5lp-hightpu-1t, -4t or -8t (v5e), ct6e-standard-1t, -4t or -8t (v6e), tpu7x-standard-4t (7x)."
  type        = string

  validation {
    condition     = contains(keys(local.tpu_machines), var.tpu_machine_type)
    error_message = "tpu_machine_type must be one of ${join(", ", keys(local.tpu_machines))}."
  }
}

variable "tpu_topology" {
  description = "How the chips are connected: 1x1 for one chip, 2x2 (7x: 2x2x1) for four, 2x4 for eight. As many chips as the model divides by share each step, unless TENSOR_PARALLEL is lower."
  type        = string

  validation {
    condition     = !contains(keys(local.tpu_machines), var.tpu_machine_type) || contains(keys(local.tpu.topologies), var.tpu_topology)
    error_message = "${var.tpu_machine_type} does not form the topology ${var.tpu_topology}, but ${join(", ", keys(local.tpu.topologies))}."
  }

  validation {
    condition     = lookup(local.tpu.topologies, var.tpu_topology, 1) == 1
    error_message = "The topology ${var.tpu_topology} of ${var.tpu_machine_type} spans several VMs, and this root serves from one. For eight chips take an -8t machine with 2x4."
  }
}

variable "waiting_requests_per_replica" {
  description = "The autoscaler adds a replica when more requests than this wait in each, on average."
  type        = number
  default     = 10

  validation {
    condition     = var.waiting_requests_per_replica >= 1 && var.waiting_requests_per_replica == floor(var.waiting_requests_per_replica)
    error_message = "waiting_requests_per_replica must be a whole number of at least 1."
  }

  validation {
    condition     = var.waiting_requests_per_replica < var.slots
    error_message = "waiting_requests_per_replica must be below slots: a replica holds no more waiting requests than that, so the autoscaler would never act."
  }
}

variable "zone" {
  description = "Zone of the TPUs, for example us-central1-a."
  type        = string

  validation {
    condition     = can(regex("^${var.region}-[a-z]$", var.zone))
    error_message = "zone must be a zone of region, such as \"us-central1-a\" in us-central1."
  }
}
