# Qwen 3.5 4B in bfloat16 (8.4 GB) on one v5e chip (16 GB). The 9B fits with env = { QUANTIZATION = "int8" } and 8 slots.
zone             = "us-central1-a"
tpu_machine_type = "ct5lp-hightpu-1t"
tpu_topology     = "1x1"
capacity         = "on_demand"

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:first"
model_uri     = "gs://my-project-models/qwen3.5-4b"

slots         = 16
max_model_len = 32768
min_replicas  = 1
max_replicas  = 3
