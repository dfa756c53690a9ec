# A model below a billion parameters without a GPU: the cheapest way to try a deployment. A start may take 240 s.
gpu_type   = "none"
cpu        = 4
memory_gib = 8

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cpu:first"
model_uri     = "gs://my-project-models/my-135m"

slots         = 4
max_model_len = 2048
