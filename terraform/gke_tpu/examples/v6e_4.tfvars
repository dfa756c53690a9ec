# A model of 30 to 40 billion parameters in bfloat16 over four v6e chips (4 x 32 GB), on spot capacity.
zone             = "us-central1-b"
tpu_machine_type = "ct6e-standard-4t"
tpu_topology     = "2x2"
capacity         = "spot"

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:first"
model_uri     = "gs://my-project-models/my-32b"

slots         = 64
max_model_len = 16384
min_replicas  = 1
max_replicas  = 2
