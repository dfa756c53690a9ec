# A model of 1 to 3 billion parameters in bfloat16 on one v5e chip (16 GB); internal, one to three replicas.
zone             = "us-central1-a"
tpu_machine_type = "ct5lp-hightpu-1t"
tpu_topology     = "1x1"
capacity         = "on_demand"

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:first"
model_uri     = "gs://my-project-models/my-3b"

slots         = 32
max_model_len = 4096
min_replicas  = 1
max_replicas  = 3
