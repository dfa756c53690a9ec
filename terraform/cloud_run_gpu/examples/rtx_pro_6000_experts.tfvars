# A mixture of experts of about 30 billion parameters (Qwen3-30B-A3B, 61 GB in bfloat16, or gpt-oss 20B, 42 GB) on one RTX
# PRO 6000 (96 GB). A step reads the weights of the chosen experts alone, but all of them are in memory.
gpu_type   = "nvidia-rtx-pro-6000"
cpu        = 20
memory_gib = 80

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda13:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda13:first"
model_uri     = "gs://my-project-models/my-30b-a3b"

slots         = 64
max_model_len = 32768
min_instances = 0
max_instances = 1

startup_cpu_boost_enabled = false
