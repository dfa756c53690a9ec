# Qwen 3.5 4B in bfloat16 (8.4 GB) on one L4 (24 GB); scales to zero. Each sequence holds a state of 50 MB whatever its
# length, and a quarter of the layers pages. The 9B fits with env = { QUANTIZATION = "int8" }.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/qwen3.5-4b"

slots         = 16
max_model_len = 65536
min_instances = 0
max_instances = 1
