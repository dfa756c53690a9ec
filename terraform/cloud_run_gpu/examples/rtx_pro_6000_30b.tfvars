# A model of about 30 billion parameters in bfloat16 (about 60 GB) on one RTX PRO 6000 (96 GB), one instance always
# ready. A new project has 40 GiB for Cloud Run in a region, and this needs 80: request quota first.
gpu_type   = "nvidia-rtx-pro-6000"
cpu        = 20
memory_gib = 80

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda13:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda13:first"
model_uri     = "gs://my-project-models/my-30b"

slots         = 32
max_model_len = 16384
min_instances = 1
max_instances = 1

startup_cpu_boost_enabled = false
