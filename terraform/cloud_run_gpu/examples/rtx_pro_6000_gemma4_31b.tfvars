# Gemma 4 31B in bfloat16 (61 GB) on one RTX PRO 6000 (96 GB); scales to zero. A new project has 40 GiB for Cloud Run in a
# region, and this needs 80: request quota first. The 26B-A4B has the same settings, and room for 786,432 tokens.
gpu_type   = "nvidia-rtx-pro-6000"
cpu        = 20
memory_gib = 80

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda13:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda13:first"
model_uri     = "gs://my-project-models/gemma-4-31b-it"

slots         = 16
max_model_len = 65536
min_instances = 0
max_instances = 1

startup_cpu_boost_enabled = false
