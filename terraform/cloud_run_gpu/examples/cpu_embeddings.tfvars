# An embedding service or a reranker without a GPU, such as bge-base or bge-reranker-base. A start may take 240 s.
gpu_type   = "none"
cpu        = 4
memory_gib = 8

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cpu:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cpu:first"
model_uri     = "gs://my-project-models/bge-base-en-v1.5"

# An encoder packs waiting texts into steps and keeps nothing between them: slots only bound the requests at once.
slots = 64

env = {
  EMBEDDING_CACHE_BYTES = "268435456"
}
