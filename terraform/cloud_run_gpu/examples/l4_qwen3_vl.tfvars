# Qwen3-VL 4B in bfloat16 (9 GB) on one L4 (24 GB); scales to zero. Images come as data URLs, in
# bodies of up to 32 MiB, which is what Cloud Run takes.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/qwen3-vl-4b-instruct"

slots         = 16
max_model_len = 16384
min_instances = 0
max_instances = 1

env = {
  MAX_IMAGE_BODY_BYTES = "33554432"
  MAX_IMAGE_TOKENS     = "1024"
}
