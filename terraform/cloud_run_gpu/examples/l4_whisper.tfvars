# Whisper large-v3 or turbo in bfloat16 (3 and 1.6 GB) on one L4 (24 GB); scales to zero. Each recording that is heard
# takes the memory of one window: 246 MB of large-v3, 31 MB of turbo (docs/memory.md).
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/whisper-large-v3"

slots         = 32
min_instances = 0
max_instances = 1

# Cloud Run itself refuses bodies above 32 MiB over HTTP/1.
env = {
  MAX_AUDIO_BYTES = "31457280"
}
