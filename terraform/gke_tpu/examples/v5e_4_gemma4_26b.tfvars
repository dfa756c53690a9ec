# Gemma 4 26B-A4B in bfloat16 (51 GB) over four v5e chips (4 x 16 GB), on spot capacity. The 12B has the same settings.
zone             = "us-central1-a"
tpu_machine_type = "ct5lp-hightpu-4t"
tpu_topology     = "2x2"
capacity         = "spot"

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:first"
model_uri     = "gs://my-project-models/gemma-4-26b-a4b-it"

slots         = 16
max_model_len = 32768
min_replicas  = 1
max_replicas  = 2
