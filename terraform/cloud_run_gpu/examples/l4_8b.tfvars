# A model of 7 to 8 billion parameters in bfloat16 (about 16 GB) on one L4 (24 GB); scales to zero. Google's recommended
# shape for an L4, and one instance of it fits into the first quota of a new project (20 vCPU, 40 GiB, 3 GPUs). For the
# metrics sidecar, which takes 1 vCPU and 1 GiB of an instance's 8 and 32: cpu = 6, memory_gib = 24.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/my-8b"

slots         = 16
max_model_len = 8192
min_instances = 0
max_instances = 1
