# A model of 7 to 8 billion parameters in bfloat16 (about 16 GB) on one L4 (24 GB); scales to zero.
gpu_type   = "nvidia-l4"
cpu        = 6 # plus 1 for the metrics sidecar; an instance has at most 8
memory_gib = 30

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve:first-cuda12"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm:first-cuda12"
model_uri     = "gs://my-project-models/my-8b"

slots         = 16
max_model_len = 8192
min_instances = 0
max_instances = 2

metrics_sidecar_enabled = true
