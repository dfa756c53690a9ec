# What both platforms are given. Each refusal is stated here once.

variable "bundle_bucket_name" {
  description = "The bundle bucket of the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", var.bundle_bucket_name))
    error_message = "The bundle bucket has no valid name: set bundle_bucket_name to the foundation root's, without gs://."
  }
}

variable "bundle_target" {
  description = "The machine of the service, as `levserve prewarm --target` names it. Null: it compiles for this one only there."
  type        = string
  default     = null
}

variable "cache_path" {
  description = "The folder of the cache volume, if model_cache is not \"none\"."
  type        = string
}

variable "catalogue_prefix" {
  description = "GCS_BUCKET and GCS_MODEL_PREFIX: the folder of the model bucket whose folders are models, which requests load; \"\" is the whole bucket. In place of model_uri."
  type        = string
  default     = null

  validation {
    condition     = var.catalogue_prefix == null ? true : !can(regex("^gs://|^/|/$", var.catalogue_prefix))
    error_message = "catalogue_prefix is a folder inside the model bucket, such as \"chat\", without gs:// and without a slash at its ends."
  }
}

variable "drain_s" {
  description = "DRAIN_SECONDS: seconds that running requests have to finish after SIGTERM."
  type        = number
}

variable "dtype" {
  description = "DTYPE: the dtype of weights and activations."
  type        = string

  validation {
    condition     = contains(["auto", "bfloat16", "float16", "float32"], var.dtype)
    error_message = "dtype must be auto, bfloat16, float16 or float32."
  }
}

variable "env" {
  description = "More settings of the service as environment variables, for example { KV_DTYPE = \"int8\", MAX_QUEUE_SIZE = \"64\" }; docs/reference/settings.md lists all. Never a key."
  type        = map(string)

  validation {
    condition     = alltrue([for name in keys(var.env) : can(regex("^[A-Z][A-Z0-9_]*$", name))])
    error_message = "env holds environment variables: their names are capitals, digits and '_'."
  }

  validation {
    condition     = alltrue([for name in keys(var.env) : !can(regex("(^|_)(KEY|TOKEN|SECRET|PASSWORD)$", name))])
    error_message = "env is readable for everyone with access to the project or cluster: put keys into a secret and name it in secret_env."
  }

  validation {
    condition     = length(setintersection(keys(var.env), keys(local.settings_env))) == 0 && !contains(keys(var.env), "PORT")
    error_message = "env repeats a setting of another variable of this root (such as MAX_NUM_SEQS: slots), or PORT, which Cloud Run sets. Use that variable."
  }

  validation {
    condition     = !contains(keys(var.env), "CATALOGUE_URI")
    error_message = "env names a folder of models: set catalogue_prefix, a folder of the model bucket, instead of CATALOGUE_URI."
  }
}

variable "image" {
  description = "The image with tag or digest."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9.-]+/[a-zA-Z0-9_./-]+(:[a-zA-Z0-9_.-]+|@sha256:[0-9a-f]{64})$", var.image)) && !endswith(var.image, ":latest")
    error_message = "image must name a registry, an image and an immutable tag or digest (not \":latest\"), such as us-central1-docker.pkg.dev/PROJECT/levserve/levserve-cuda12:1.0."
  }
}

variable "key_file_secret" {
  description = "The secret whose content is the file API_KEY_FILE: more keys with names and weights. Null: none."
  type        = string
  default     = null

  validation {
    condition     = var.key_file_secret == null ? true : can(regex("^[a-zA-Z0-9_.-]{1,253}$", var.key_file_secret))
    error_message = "key_file_secret is the name of a secret (letters, digits, '-', '_' and '.'), not its content."
  }

  validation {
    condition     = var.key_file_secret == null || contains(keys(var.secret_env), "API_KEY")
    error_message = "key_file_secret adds keys to API_KEY, which the smoke test and the collector of metrics send: name a secret for API_KEY in secret_env too."
  }
}

variable "limits" {
  description = "The platform's limits: seconds of a request, and slots of an instance."
  type        = object({ request_timeout_s = number, slots = number })
}

variable "max_cached_models" {
  description = "MAX_CACHED_MODELS: models of a catalogue that are in memory at once. Null: 2."
  type        = number
  default     = null

  validation {
    condition     = var.max_cached_models == null ? true : var.max_cached_models >= 1 && var.max_cached_models == floor(var.max_cached_models)
    error_message = "max_cached_models must be a whole number of at least 1."
  }

  validation {
    condition     = var.max_cached_models == null || local.has_catalogue
    error_message = "max_cached_models is of a catalogue: set catalogue_prefix or models_config_uri with it."
  }
}

variable "max_model_len" {
  description = "MAX_MODEL_LEN: context length in tokens. Null: the model's own, as memory allows."
  type        = number
  default     = null

  validation {
    condition     = var.max_model_len == null ? true : var.max_model_len >= 16
    error_message = "max_model_len must be at least 16 tokens."
  }
}

variable "model_bucket_name" {
  description = "The model bucket of the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$", var.model_bucket_name))
    error_message = "The model bucket has no valid name: set model_bucket_name to the foundation root's, without gs://."
  }
}

variable "model_cache" {
  description = "Storage of a downloaded checkpoint: \"none\" streams it to the accelerator, \"disk\" and \"memory\" keep a copy."
  type        = string

  validation {
    condition     = contains(["none", "disk", "memory"], var.model_cache)
    error_message = "model_cache must be \"none\", \"disk\" or \"memory\"."
  }
}

variable "model_name" {
  description = "MODEL_NAME: the name that clients send as `model`, or several, separated by commas. Null: the last part of model_uri."
  type        = string
  default     = null

  validation {
    condition     = var.model_name == null || !local.has_catalogue
    error_message = "model_name names one model, and a catalogue's models have the names of their folders or of models_config_uri: remove it."
  }
}

variable "model_uri" {
  description = "MODEL_URI: the checkpoint in the model bucket, for example gs://my-project-models/my-model. Null: a catalogue is served."
  type        = string
  default     = null

  validation {
    condition     = var.model_uri == null ? true : startswith(var.model_uri, "gs://${var.model_bucket_name}/") && length(var.model_uri) > length("gs://${var.model_bucket_name}/")
    error_message = "model_uri must be gs://MODEL_BUCKET_NAME/FOLDER: the service can read only that bucket, and has no access to the internet."
  }

  validation {
    condition     = (var.model_uri != null) != local.has_catalogue
    error_message = "Name what to serve in one way: model_uri for one model, or catalogue_prefix, models_config_uri or both for several."
  }
}

variable "models" {
  description = "MODELS: the only models of the catalogue to serve, loaded at the start. Empty: all, each at the first request for it."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.models : can(regex("^[^, ]+$", name))])
    error_message = "models holds one name in each place, without commas or spaces."
  }

  validation {
    condition     = length(var.models) == 0 || local.has_catalogue
    error_message = "models chooses from a catalogue: set catalogue_prefix or models_config_uri with it."
  }
}

variable "models_config_uri" {
  description = "MODELS_CONFIG: a YAML file in the model bucket that describes models, for example gs://my-project-models/models.yaml. Without catalogue_prefix only those are served."
  type        = string
  default     = null

  validation {
    condition     = var.models_config_uri == null ? true : startswith(var.models_config_uri, "gs://${var.model_bucket_name}/") && can(regex("\\.ya?ml$", var.models_config_uri))
    error_message = "models_config_uri must be gs://MODEL_BUCKET_NAME/FILE.yaml: the service can read only that bucket."
  }
}

variable "notification_channels" {
  description = "Recipients of alerts: ids such as projects/PROJECT/notificationChannels/NUMBER."
  type        = list(string)

  validation {
    condition     = alltrue([for id in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[^/]+$", id))])
    error_message = "notification_channels must be ids such as projects/PROJECT/notificationChannels/NUMBER."
  }
}

variable "prewarm_account_email" {
  description = "The prewarm identity of the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.gserviceaccount\\.com$", var.prewarm_account_email))
    error_message = "prewarm_account_email must be a service account's email; take it from the foundation root's outputs."
  }

  validation {
    condition     = var.prewarm_account_email != var.serve_account_email
    error_message = "prewarm_account_email and serve_account_email are the same: a served request could then reach an identity that writes native code."
  }
}

variable "prewarm_image" {
  description = "The image of the prewarm job. A Levanter checkpoint needs levserve-prewarm, which also converts it for the service; null: image, enough for a Hugging Face checkpoint."
  type        = string
  default     = null

  validation {
    condition     = var.prewarm_image == null ? true : can(regex("^[a-z0-9.-]+/[a-zA-Z0-9_./-]+(:[a-zA-Z0-9_.-]+|@sha256:[0-9a-f]{64})$", var.prewarm_image)) && !endswith(var.prewarm_image, ":latest")
    error_message = "prewarm_image must name a registry, an image and an immutable tag or digest (not \":latest\"), such as us-central1-docker.pkg.dev/PROJECT/levserve/levserve-prewarm-cuda12:1.0."
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
  description = "The region, the same as the foundation root's."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as \"us-central1\", not a zone."
  }
}

variable "request_timeout_s" {
  description = "REQUEST_TIMEOUT: seconds that one request may take."
  type        = number

  validation {
    condition     = var.request_timeout_s >= 1 && var.request_timeout_s <= var.limits.request_timeout_s
    error_message = "request_timeout_s must be between 1 and ${var.limits.request_timeout_s}, this platform's limit."
  }
}

variable "secret_env" {
  description = "Settings that are keys: environment variable to the name of a secret, for example { API_KEY = \"levserve-api-key\" }."
  type        = map(string)

  validation {
    condition     = alltrue([for secret in values(var.secret_env) : can(regex("^[a-zA-Z0-9_.-]{1,253}$", secret))])
    error_message = "secret_env holds names of secrets (letters, digits, '-', '_' and '.'), not the keys themselves."
  }

  validation {
    condition     = !contains(keys(var.secret_env), "API_KEY_FILE") && !contains(keys(var.env), "API_KEY_FILE")
    error_message = "API_KEY_FILE is the path of a file: name its secret in key_file_secret, which mounts it."
  }

  validation {
    condition     = length(setintersection(keys(var.secret_env), keys(local.settings_env))) == 0
    error_message = "secret_env repeats a setting of another variable of this root."
  }
}

variable "serve_account_email" {
  description = "The serving identity of the foundation root."
  type        = string

  validation {
    condition     = can(regex("^[^@ ]+@[^@ ]+\\.gserviceaccount\\.com$", var.serve_account_email))
    error_message = "serve_account_email must be a service account's email; take it from the foundation root's outputs."
  }
}

variable "service_name" {
  description = "Name of the service, and of its folder in the bundle bucket."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,38}[a-z0-9]$", var.service_name))
    error_message = "service_name must be 2 to 40 of a-z, 0-9 and '-', starting with a letter."
  }
}

variable "slots" {
  description = "MAX_NUM_SEQS: sequences that run at the same time on an instance. As many more may wait."
  type        = number

  validation {
    condition     = var.slots >= 1 && var.slots <= var.limits.slots && var.slots == floor(var.slots)
    error_message = "slots must be a whole number from 1 to ${var.limits.slots}: an instance accepts twice as many requests, half of them running and half waiting."
  }
}

variable "startup_budget_s" {
  description = "Seconds that a start may take before it is stopped."
  type        = number
}
