# A batch of many requests on four L4 (24 GB), beside a service that scales to zero: a folder of .jsonl files in, a folder of
# answers out. `terraform output -raw batch_command` prints the command that runs it.
gpu_type   = "nvidia-l4"
cpu        = 8
memory_gib = 32

image         = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:first"
prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:first"
model_uri     = "gs://my-project-models/my-8b"

slots         = 16
max_model_len = 8192

batch = {
  input  = "gs://my-project-data/requests"
  output = "gs://my-project-data/answers"
  tasks  = 4
}
