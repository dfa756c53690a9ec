# Several small models on one L4, loaded by the first request for each; two in memory at once. Each folder of
# gs://my-project-models/chat is a model, and models.yaml gives some of them names and options. The first request for a
# model waits for its load: about as long as its weights take from the bucket.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"

catalogue_prefix  = "chat"
models_config_uri = "gs://my-project-models/models.yaml"
max_cached_models = 2

slots         = 8
max_model_len = 8192

env = {
  MODEL_LOAD_WAIT_SECONDS = "120"
}
