# The models that a file describes on one v6e chip (32 GB), two of them in memory at once, and one loaded at the start.
zone             = "us-central1-b"
tpu_machine_type = "ct6e-standard-1t"
tpu_topology     = "1x1"
capacity         = "on_demand"

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:first"

models_config_uri = "gs://my-project-models/models.yaml"
models            = ["my-3b", "my-1b"]
max_cached_models = 2

slots         = 32
max_model_len = 4096
min_replicas  = 1
max_replicas  = 3
