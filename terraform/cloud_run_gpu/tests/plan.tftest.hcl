mock_provider "google" {
  mock_data "google_project" {
    defaults = { number = "123456789012" }
  }
}

variables {
  project_id            = "my-project"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  model_uri             = "gs://my-project-models/my-8b"
  image                 = "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:1.0"
  network               = "levserve"
  subnetwork            = "levserve-us-central1"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  deploy_account_email  = "levserve-deploy@my-project.iam.gserviceaccount.com"
}

run "a_start_with_a_gpu_has_half_an_hour" {
  command = plan

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].containers[0].startup_probe[0].failure_threshold
    * google_cloud_run_v2_service.main.template[0].containers[0].startup_probe[0].period_seconds == 1800)
    error_message = "The startup probe must wait as long as Cloud Run allows with a GPU."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].containers[0].startup_probe[0].http_get[0].path == "/health/ready"
    error_message = "Started means ready: a real token was produced."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].containers[0].liveness_probe[0].http_get[0].path == "/health/live"
    error_message = "The liveness probe must not ask whether the model is loaded."
  }

  assert {
    condition     = tonumber(module.settings.env["PULL_TIMEOUT"]) < 1800
    error_message = "A pull that hangs must fail with its own message before the probe gives up."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.timeouts.create == "45m" && google_cloud_run_v2_service.main.timeouts.update == "45m"
    error_message = "Terraform must wait longer than a start may take."
  }
}

run "a_start_without_a_gpu_has_four_minutes" {
  command = plan
  variables {
    gpu_type   = "none"
    cpu        = 4
    memory_gib = 8
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].containers[0].startup_probe[0].failure_threshold
    * google_cloud_run_v2_service.main.template[0].containers[0].startup_probe[0].period_seconds == 240)
    error_message = "Without a GPU Cloud Run allows 240 s."
  }

  assert {
    condition     = length(google_cloud_run_v2_service.main.template[0].node_selector) == 0
    error_message = "Without a GPU there is no accelerator to select."
  }

  assert {
    condition     = !contains(keys(google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits), "nvidia.com/gpu")
    error_message = "Without a GPU none may be asked for."
  }
}

run "an_l4_gets_at_least_its_shape" {
  command = plan

  assert {
    condition = (tonumber(google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits["cpu"]) >= 4
    && tonumber(trimsuffix(google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits["memory"], "Gi")) >= 16)
    error_message = "An L4 needs 4 vCPU and 16 GiB."
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].node_selector[0].accelerator == "nvidia-l4"
    && google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits["nvidia.com/gpu"] == "1")
    error_message = "There must be one L4."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].containers[0].resources[0].cpu_idle == false
    error_message = "A GPU needs instance-based billing."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].gpu_zonal_redundancy_disabled
    error_message = "A fresh project's quota covers GPUs without zonal redundancy only."
  }
}

run "a_bundle_is_compiled_for_the_gpu_in_cloud_build" {
  command = plan

  assert {
    condition     = strcontains(output.bundle_command, "_TARGET=l4,")
    error_message = "Cloud Build must compile for the service's GPU."
  }
}

run "without_a_gpu_the_job_alone_compiles" {
  command = plan
  variables {
    gpu_type   = "none"
    cpu        = 4
    memory_gib = 8
  }

  assert {
    condition     = output.bundle_command == null
    error_message = "A CPU's bundle fits only the machine that made it."
  }
}

run "an_rtx_pro_6000_gets_at_least_its_shape" {
  command = plan
  variables {
    gpu_type   = "nvidia-rtx-pro-6000"
    cpu        = 20
    memory_gib = 80
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits["cpu"] == "20"
    && google_cloud_run_v2_service.main.template[0].containers[0].resources[0].limits["memory"] == "80Gi")
    error_message = "An RTX PRO 6000 needs 20 vCPU and 80 GiB."
  }
}

run "nobody_is_let_in_by_default" {
  command = plan

  assert {
    condition     = [for grant in google_cloud_run_v2_service_iam_member.invoker : grant.member] == ["serviceAccount:levserve-deploy@my-project.iam.gserviceaccount.com"]
    error_message = "By default only the smoke test of a deployment may call the service."
  }

  assert {
    condition = (google_cloud_run_v2_service_iam_member.deploy_changes.role == "roles/run.developer" && google_cloud_run_v2_service_iam_member.deploy_changes.name == "levserve"
    && google_cloud_run_v2_job_iam_member.deploy_executes.role == "roles/run.developer" && google_cloud_run_v2_job_iam_member.deploy_executes.name == "levserve-prewarm")
    error_message = "A build may change this service and execute this job."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.invoker_iam_disabled == false
    error_message = "The invoker check must be on."
  }
}

run "the_public_is_let_in_with_a_key_only" {
  command = plan
  variables {
    public_access_enabled = true
    secret_env            = { API_KEY = "levserve-api-key" }
  }

  assert {
    condition     = contains([for grant in google_cloud_run_v2_service_iam_member.invoker : grant.member], "allUsers")
    error_message = "public_access_enabled must let everyone in."
  }

  assert {
    condition     = strcontains(output.prewarm_command, "levserve-prewarm") && google_secret_manager_secret_iam_member.serve_reads_keys["levserve-api-key"].role == "roles/secretmanager.secretAccessor"
    error_message = "The serving identity must be able to read the key."
  }
}

run "no_key_is_in_plain_text" {
  command = plan
  variables {
    secret_env = { API_KEY = "levserve-api-key" }
  }

  assert {
    condition = one([for variable in google_cloud_run_v2_service.main.template[0].containers[0].env :
    variable.value_source[0].secret_key_ref[0].secret if variable.name == "API_KEY" && variable.value == null]) == "levserve-api-key"
    error_message = "A key must come from Secret Manager."
  }

  assert {
    condition     = !contains([for variable in google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].env : variable.name], "API_KEY")
    error_message = "The prewarm job needs no key."
  }
}

run "a_file_of_keys_is_a_volume" {
  command = plan
  variables {
    secret_env      = { API_KEY = "levserve-api-key" }
    key_file_secret = "levserve-api-keys"
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].volumes[0].secret[0].secret == "levserve-api-keys"
    && "${google_cloud_run_v2_service.main.template[0].containers[0].volume_mounts[0].mount_path}/${google_cloud_run_v2_service.main.template[0].volumes[0].secret[0].items[0].path}" == module.settings.env["API_KEY_FILE"])
    error_message = "The secret must be mounted where API_KEY_FILE says."
  }

  assert {
    condition     = google_secret_manager_secret_iam_member.serve_reads_keys["levserve-api-keys"].role == "roles/secretmanager.secretAccessor"
    error_message = "The serving identity must be able to read the file."
  }
}

run "the_prewarm_job_signs_bundles" {
  command = plan
  variables {
    secret_env = { API_KEY = "levserve-api-key", BUNDLE_SIGNING_KEY = "levserve-bundle-key" }
  }

  assert {
    condition = one([for variable in google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].env :
    variable.value_source[0].secret_key_ref[0].secret if variable.value == null]) == "levserve-bundle-key"
    error_message = "The prewarm job must have the key that signs bundles, and no other."
  }

  assert {
    condition     = keys(google_secret_manager_secret_iam_member.prewarm_reads_keys) == ["levserve-bundle-key"]
    error_message = "The prewarm identity must be able to read the key that signs bundles, and no other."
  }
}

run "concurrency_follows_the_slots" {
  command = plan
  variables {
    slots = 24
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].max_instance_request_concurrency == 48
    && module.settings.env["MAX_NUM_SEQS"] == "24" && module.settings.env["MAX_CONCURRENT_REQUESTS"] == "48")
    error_message = "Cloud Run must send as many requests as run and wait, no more."
  }
}

run "it_scales_to_zero_and_within_the_first_quota" {
  command = plan

  assert {
    condition     = google_cloud_run_v2_service.main.scaling[0].min_instance_count == 0
    error_message = "The default must scale to zero."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].scaling[0].max_instance_count == 1
    error_message = "A new project has 40 GiB in a region, and an instance has 32."
  }

  assert {
    condition     = length(module.monitoring.uptime_checks) == 0
    error_message = "An uptime check would keep a service that scales to zero awake."
  }
}

run "an_instance_that_is_always_ready_is_checked_from_outside" {
  command = plan
  variables {
    min_instances = 1
  }

  assert {
    condition     = module.monitoring.uptime_checks[0].http_check[0].path == "/health/ready"
    error_message = "The uptime check must ask for readiness."
  }

  assert {
    condition     = contains([for grant in google_cloud_run_v2_service_iam_member.invoker : grant.member], "serviceAccount:service-123456789012@gcp-sa-monitoring-notification.iam.gserviceaccount.com")
    error_message = "The uptime check must be allowed to call the service."
  }

  assert {
    condition     = contains(keys(module.monitoring.alert_queries), "uptime")
    error_message = "A failing uptime check must alert."
  }
}

run "an_internal_service_is_not_checked_from_outside" {
  command = plan
  variables {
    min_instances = 1
    ingress       = "INGRESS_TRAFFIC_INTERNAL_ONLY"
  }

  assert {
    condition     = length(module.monitoring.uptime_checks) == 0 && !contains(keys(module.monitoring.alert_queries), "uptime")
    error_message = "An uptime check from the internet would fail for ever."
  }

  assert {
    condition     = length(google_cloud_run_v2_service_iam_member.invoker) == 1
    error_message = "Without an uptime check Monitoring needs no grant."
  }
}

run "charts_read_the_foundations_log_metrics" {
  command = plan
  variables {
    log_metric_prefix = "team-b"
  }

  assert {
    condition     = strcontains(module.monitoring.alert_queries["slow_start"], "user_team_b_start_seconds_bucket")
    error_message = "The log metrics have the prefix of the foundation that made them."
  }
}

run "weights_are_streamed_by_default" {
  command = plan

  assert {
    condition     = module.settings.env["MODEL_STREAM"] == "true" && !contains(keys(module.settings.env), "LOCAL_MODEL_CACHE")
    error_message = "Without a cache weights must go straight to the device: the file system is memory."
  }

  assert {
    condition     = length(google_cloud_run_v2_service.main.template[0].volumes) == 0
    error_message = "There must be no volume."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].vpc_access[0].egress == "ALL_TRAFFIC"
    error_message = "Weights must come over the subnet with Private Google Access."
  }
}

run "a_disk_keeps_the_checkpoint" {
  command = plan
  variables {
    model_cache = "disk"
    cache_gib   = 30
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].volumes[0].empty_dir[0].medium == "DISK"
      && google_cloud_run_v2_service.main.template[0].volumes[0].empty_dir[0].size_limit == "30Gi"
    && google_cloud_run_v2_service.main.template[0].containers[0].volume_mounts[0].mount_path == module.settings.env["LOCAL_MODEL_CACHE"])
    error_message = "The cache must lie on the ephemeral disk."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.launch_stage == "BETA"
    error_message = "Ephemeral disks are in Preview."
  }
}

run "memory_keeps_the_checkpoint" {
  command = plan
  variables {
    model_cache = "memory"
    cache_gib   = 20
  }

  assert {
    condition = (google_cloud_run_v2_service.main.template[0].volumes[0].empty_dir[0].medium == "MEMORY"
    && google_cloud_run_v2_service.main.launch_stage == "GA")
    error_message = "The cache must lie in memory."
  }
}

run "the_job_compiles_for_the_services_accelerator" {
  command = plan

  assert {
    condition = (google_cloud_run_v2_job.prewarm.template[0].template[0].node_selector[0].accelerator == "nvidia-l4"
    && google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].args == tolist(["prewarm", "gs://my-project-models/my-8b"]))
    error_message = "A bundle fits only the GPU that it was compiled on."
  }

  assert {
    condition     = google_cloud_run_v2_job.prewarm.template[0].template[0].service_account == "levserve-prewarm@my-project.iam.gserviceaccount.com"
    error_message = "The job must run as the only identity that writes bundles."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.template[0].service_account == "levserve-serve@my-project.iam.gserviceaccount.com"
    error_message = "The service must not run as the prewarm identity."
  }

  assert {
    condition     = module.settings.env["BUNDLE_URI"] == "gs://my-project-bundles/levserve"
    error_message = "Bundles must lie in the bundle bucket."
  }
}

run "terraform_never_executes_the_job" {
  command = plan

  assert {
    condition     = google_cloud_run_v2_job.prewarm.run_execution_token == null && google_cloud_run_v2_job.prewarm.start_execution_token == null
    error_message = "The API drops a token at the next execution, and every later plan would differ."
  }
}

run "a_levanter_checkpoint_is_prewarmed_with_levanter" {
  command = plan
  variables {
    prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-cuda12:1.0"
  }

  assert {
    condition = (google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].image == var.prewarm_image
    && google_cloud_run_v2_service.main.template[0].containers[0].image == var.image)
    error_message = "The job must run with Levanter, the service without."
  }
}

run "the_service_is_hard_to_delete" {
  command = plan

  assert {
    condition     = google_cloud_run_v2_service.main.deletion_protection
    error_message = "A destroy must be refused by default."
  }
}

run "alerts_cover_what_the_platform_sees" {
  command = plan

  assert {
    condition     = toset(keys(module.monitoring.alert_queries)) == toset(["errors_5xx", "no_ready_instance", "queue", "slow_start"])
    error_message = "Without the sidecar there must be four alerts."
  }
}

run "the_sidecar_adds_what_the_engine_sees" {
  command = plan
  variables {
    cpu                     = 6
    memory_gib              = 24
    metrics_sidecar_enabled = true
  }

  assert {
    condition     = strcontains(module.monitoring.alert_queries["kv_cache_full"], "levserve_kv_cache_usage_perc")
    error_message = "Full KV pages must alert."
  }

  assert {
    condition     = length(google_cloud_run_v2_service.main.template[0].containers) == 2 && length(module.monitoring.dashboard.mosaicLayout.tiles) == 13
    error_message = "There must be a sidecar, and charts of what it brings."
  }
}

run "the_smoke_command_can_be_copied" {
  command = apply

  override_resource {
    target = google_cloud_run_v2_service.main
    values = { uri = "https://levserve-abc-uc.a.run.app" }
  }

  assert {
    condition     = output.smoke_command == "levserve smoke https://levserve-abc-uc.a.run.app --identity-token auto --timeout 1800"
    error_message = "It must be a command to copy."
  }

  assert {
    condition     = output.url == "https://levserve-abc-uc.a.run.app"
    error_message = "The address must be printed."
  }
}

run "the_smoke_command_shows_no_key" {
  command = apply
  variables {
    public_access_enabled = true
    secret_env            = { API_KEY = "levserve-api-key" }
  }

  override_resource {
    target = google_cloud_run_v2_service.main
    values = { uri = "https://levserve-abc-uc.a.run.app" }
  }

  assert {
    condition     = output.smoke_command == "gcloud secrets versions access latest --secret=levserve-api-key --project=my-project | cut -d, -f1 | levserve smoke https://levserve-abc-uc.a.run.app --api-key @/dev/stdin --timeout 1800"
    error_message = "The key must come through a pipe, where no process list shows it."
  }
}

run "a_catalogue_is_served_and_compiled_as_a_whole" {
  command = plan
  variables {
    model_uri         = null
    catalogue_prefix  = "chat"
    models            = ["my-8b"]
    max_cached_models = 2
  }

  assert {
    condition = { for entry in google_cloud_run_v2_service.main.template[0].containers[0].env : entry.name => entry.value if contains(["GCS_BUCKET", "GCS_MODEL_PREFIX", "MAX_CACHED_MODELS", "MODELS", "MODEL_URI"], entry.name) } == {
      GCS_BUCKET        = "my-project-models"
      GCS_MODEL_PREFIX  = "chat"
      MAX_CACHED_MODELS = "2"
      MODELS            = "my-8b"
    }
    error_message = "The service must list the folder, and name no model of its own."
  }

  assert {
    condition = (jsonencode(google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].args) == jsonencode(["prewarm", "--all"])
    && contains([for entry in google_cloud_run_v2_job.prewarm.template[0].template[0].containers[0].env : entry.value if entry.name == "GCS_MODEL_PREFIX"], "chat"))
    error_message = "The job must compile for every model of the same catalogue."
  }

  assert {
    condition     = google_cloud_run_v2_service.main.description == "Levserve: gs://my-project-models/chat"
    error_message = "The service must say what it serves."
  }
}

run "without_a_batch_there_is_no_job_for_one" {
  command = plan

  assert {
    condition     = length(google_cloud_run_v2_job.batch) == 0 && output.batch_command == null && length(google_storage_bucket_iam_member.batch) == 0
    error_message = "Nothing may be made or granted that nobody asked for."
  }
}

run "a_batch_is_a_task_a_shard_with_the_services_gpu_and_settings" {
  command = plan
  variables {
    batch = {
      input  = "gs://my-project-data/requests"
      output = "gs://my-project-answers/today"
      tasks  = 4
      args   = ["--max-error-rate", "0.1"]
    }
  }

  assert {
    condition = (google_cloud_run_v2_job.batch[0].template[0].task_count == 4 && google_cloud_run_v2_job.batch[0].template[0].parallelism == 4
    && google_cloud_run_v2_job.batch[0].template[0].template[0].timeout == "43200s" && google_cloud_run_v2_job.batch[0].launch_stage == "BETA")
    error_message = "Four tasks must run at once, for as long as a GPU's may."
  }

  assert {
    condition = (jsonencode(google_cloud_run_v2_job.batch[0].template[0].template[0].containers[0].args)
    == jsonencode(["batch", "gs://my-project-data/requests", "gs://my-project-answers/today", "--max-error-rate", "0.1"]))
    error_message = "The arguments must be those of levserve batch; Cloud Run says which task is which shard."
  }

  assert {
    condition = (google_cloud_run_v2_job.batch[0].template[0].template[0].containers[0].resources[0].limits["nvidia.com/gpu"] == "1"
      && contains([for entry in google_cloud_run_v2_job.batch[0].template[0].template[0].containers[0].env : entry.value if entry.name == "MODEL_URI"], "gs://my-project-models/my-8b")
    && google_cloud_run_v2_job.batch[0].template[0].template[0].max_retries == 10)
    error_message = "It must have the service's GPU and model, and go on after an interruption."
  }

  assert {
    condition = ({ for end, grant in google_storage_bucket_iam_member.batch : end => "${grant.bucket} ${grant.role}" }
    == { input = "my-project-data roles/storage.objectViewer", output = "my-project-answers roles/storage.objectUser" })
    error_message = "It must read the one place and write the other, and no more."
  }

  assert {
    condition     = output.batch_command == "gcloud run jobs execute levserve-batch --region=us-central1 --project=my-project --wait"
    error_message = "It must be a command to copy."
  }
}
