# Gemma 4 E4B in bfloat16 (15 GB) on one L4 (24 GB); scales to zero. Its windows of 512 and the layers that share caches
# leave room for 245,760 tokens (docs/memory.md). E2B has the same settings; the 12B needs QUANTIZATION = "int8" here.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/gemma-4-e4b-it"

slots         = 16
max_model_len = 32768
min_instances = 0
max_instances = 1
