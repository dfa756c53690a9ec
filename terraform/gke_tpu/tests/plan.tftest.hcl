mock_provider "google" {}

mock_provider "kubernetes" {}

mock_provider "helm" {}

variables {
  project_id            = "my-project"
  zone                  = "us-central1-a"
  model_bucket_name     = "my-project-models"
  bundle_bucket_name    = "my-project-bundles"
  model_uri             = "gs://my-project-models/my-8b"
  image                 = "us-central1-docker.pkg.dev/my-project/levserve/levserve-tpu:1.0"
  tpu_machine_type      = "ct5lp-hightpu-1t"
  tpu_topology          = "1x1"
  serve_account_email   = "levserve-serve@my-project.iam.gserviceaccount.com"
  prewarm_account_email = "levserve-prewarm@my-project.iam.gserviceaccount.com"
  node_account_email    = "levserve-node@my-project.iam.gserviceaccount.com"
}

run "one_chip_of_v5e" {
  command = plan

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].node_selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].node_selector["cloud.google.com/gke-tpu-topology"] == "1x1")
    error_message = "The pod must ask for a v5e of one chip."
  }

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].resources[0].limits["google.com/tpu"] == "1"
    && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].resources[0].requests["google.com/tpu"] == "1")
    error_message = "Chips asked for and allowed must be the machine's."
  }

  assert {
    condition     = google_container_node_pool.tpu.node_config[0].machine_type == "ct5lp-hightpu-1t" && length(google_container_node_pool.tpu.placement_policy) == 0
    error_message = "A slice of one machine has no placement policy."
  }
}

run "four_chips_of_v6e" {
  command = plan
  variables {
    tpu_machine_type = "ct6e-standard-4t"
    tpu_topology     = "2x2"
  }

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].node_selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v6e-slice"
    && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].resources[0].limits["google.com/tpu"] == "4")
    error_message = "The pod must ask for four chips of v6e."
  }
}

run "eight_chips_of_v6e" {
  command = plan
  variables {
    tpu_machine_type = "ct6e-standard-8t"
    tpu_topology     = "2x4"
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].resources[0].limits["google.com/tpu"] == "8"
    error_message = "The pod must ask for eight chips."
  }
}

run "four_chips_of_7x" {
  command = plan
  variables {
    tpu_machine_type = "tpu7x-standard-4t"
    tpu_topology     = "2x2x1"
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].node_selector["cloud.google.com/gke-tpu-accelerator"] == "tpu7x"
    error_message = "The pod must ask for 7x."
  }
}

run "probes_ask_what_they_mean" {
  command = plan

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].startup_probe[0].http_get[0].path == "/health/ready"
      && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].readiness_probe[0].http_get[0].path == "/health/ready"
    && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].liveness_probe[0].http_get[0].path == "/health/live")
    error_message = "Started and ready mean that a token was produced; alive means that the process should go on."
  }

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].startup_probe[0].failure_threshold
    * kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].startup_probe[0].period_seconds == 3600)
    error_message = "Compiling for a TPU without a bundle must have an hour."
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].termination_grace_period_seconds > tonumber(module.settings.env["DRAIN_SECONDS"]) + local.deregister_s
    error_message = "A pod must not be killed while it drains."
  }
}

run "a_stream_finishes_while_its_pod_stops" {
  command = plan
  variables {
    request_timeout_s = 450
  }

  assert {
    condition     = module.settings.env["DRAIN_SECONDS"] == "450" && local.backend_policy.spec.default.connectionDraining.drainingTimeoutSec == 450
    error_message = "A drain must last as long as a request may."
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].lifecycle[0].pre_stop[0].exec[0].command[1] == "40"
    error_message = "The load balancer takes up to 40 s to stop sending requests."
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].termination_grace_period_seconds == 495
    error_message = "A pod must have the time for both."
  }
}

run "a_pod_has_its_share_of_the_machine" {
  command = plan

  assert {
    condition = alltrue([for pod in [kubernetes_deployment_v1.main.spec[0].template[0].spec[0], kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0]] :
    pod.container[0].resources[0].requests["cpu"] == "12" && pod.container[0].resources[0].requests["memory"] == "24G"])
    error_message = "A pod without requests is evicted first."
  }
}

run "the_container_may_open_the_tpus_devices" {
  command = plan

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].security_context[0].run_as_user == "0"
    error_message = "Until another user is shown to work, the container runs as root like Google's manifests."
  }

  assert {
    condition = alltrue([for spec in [kubernetes_deployment_v1.main.spec[0].template[0].spec[0], kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0]] :
      spec.security_context[0].seccomp_profile[0].type == "RuntimeDefault"
      && spec.container[0].security_context[0].read_only_root_filesystem
      && !spec.container[0].security_context[0].allow_privilege_escalation
      && tolist(spec.container[0].security_context[0].capabilities[0].drop) == tolist(["ALL"])
      && contains(spec.container[0].volume_mount[*].mount_path, "/tmp")
    ])
    error_message = "Root has no capability, the default profile of system calls, and /tmp alone to write."
  }

  assert {
    condition     = kubernetes_namespace_v1.main.metadata[0].labels["pod-security.kubernetes.io/enforce"] == "baseline"
    error_message = "The namespace must admit root, and nothing privileged."
  }
}

run "a_pod_speaks_to_its_clients_and_to_google_alone" {
  command = plan

  assert {
    condition     = kubernetes_network_policy_v1.main.spec[0].ingress[*].ports[0].port == tolist(["8080"])
    error_message = "Clients reach the service's port alone."
  }

  assert {
    condition     = toset(kubernetes_network_policy_v1.main.spec[0].egress[*].ports[0].port) == toset(["53", "80", "443", "988", "4318"])
    error_message = "A pod needs names, Google's APIs, images of requests, the metadata server and a collector of traces."
  }
}

run "another_user_can_be_tried" {
  command = plan
  variables {
    run_as_user = 10001
  }

  assert {
    condition     = kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0].container[0].security_context[0].run_as_user == "10001"
    error_message = "Service and prewarm must run as the same user."
  }

  assert {
    condition     = kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].security_context[0].run_as_non_root && kubernetes_namespace_v1.main.metadata[0].labels["pod-security.kubernetes.io/enforce"] == "restricted"
    error_message = "Who is not root meets the strictest of Kubernetes's standards."
  }
}

run "a_pause_does_not_alert" {
  command = plan

  assert {
    condition     = strcontains(module.monitoring.alert_queries["no_ready_instance"], "kube_deployment_spec_replicas")
    error_message = "A deployment that was scaled to 0 by hand is not an incident."
  }
}

run "each_model_has_its_own_names" {
  command = plan
  variables {
    service_name = "my-8b"
  }

  assert {
    condition     = google_container_node_pool.tpu.name == "my-8b-tpu" && kubernetes_namespace_v1.main.metadata[0].name == "my-8b"
    error_message = "Two models on one cluster must not collide."
  }
}

run "no_reservation_is_eaten_by_chance" {
  command = plan

  assert {
    condition     = google_container_node_pool.tpu.node_config[0].reservation_affinity[0].consume_reservation_type == "NO_RESERVATION"
    error_message = "On-demand TPUs must not come from a reservation."
  }
}

run "spot_tpus" {
  command = plan
  variables {
    capacity = "spot"
  }

  assert {
    condition     = google_container_node_pool.tpu.node_config[0].spot && module.settings.env["DRAIN_SECONDS"] == "8"
    error_message = "Spot pods have little time to drain."
  }
}

run "tpus_that_are_waited_for" {
  command = plan
  variables {
    capacity = "flex_start"
  }

  assert {
    condition = (google_container_node_pool.tpu.node_config[0].flex_start && google_container_node_pool.tpu.node_config[0].max_run_duration == "604800s"
    && google_container_node_pool.tpu.management[0].auto_repair == false)
    error_message = "Flex start lends nodes for at most 7 days and repairs none."
  }

  assert {
    condition     = !kubernetes_deployment_v1.main.wait_for_rollout && !kubernetes_job_v1.prewarm[0].wait_for_completion
    error_message = "An apply must not wait for capacity that may come tomorrow."
  }
}

run "reserved_tpus" {
  command = plan
  variables {
    capacity         = "reservation"
    reservation_name = "my-reservation"
  }

  assert {
    condition     = google_container_node_pool.tpu.node_config[0].reservation_affinity[0].values == toset(["my-reservation"])
    error_message = "The pool must take the named reservation."
  }
}

run "it_scales_on_our_queue" {
  command = plan
  variables {
    max_replicas = 4
  }

  assert {
    condition     = kubernetes_horizontal_pod_autoscaler_v2.main[0].spec[0].metric[0].pods[0].metric[0].name == "prometheus.googleapis.com|levserve_num_requests_waiting|gauge"
    error_message = "Replicas must follow the queue."
  }

  assert {
    condition = (kubernetes_horizontal_pod_autoscaler_v2.main[0].spec[0].metric[1].pods[0].metric[0].name == "prometheus.googleapis.com|levserve_num_requests_running|gauge"
    && kubernetes_horizontal_pod_autoscaler_v2.main[0].spec[0].metric[1].pods[0].target[0].average_value == "24")
    error_message = "Full slots with an empty queue must keep their replicas: 24 of 32 slots are the target."
  }

  assert {
    condition     = google_container_node_pool.tpu.autoscaling[0].total_max_node_count == 5 && google_container_node_pool.tpu.autoscaling[0].total_min_node_count == 0
    error_message = "There must be a machine for each replica and one to prewarm on, and none when nothing runs."
  }

  assert {
    condition     = kubernetes_pod_disruption_budget_v1.main.spec[0].max_unavailable == "1"
    error_message = "Drains must take one pod at a time."
  }
}

run "pods_act_as_separate_identities_without_key_files" {
  command = plan

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].service_account_name == "levserve-serve"
    && kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0].service_account_name == "levserve-prewarm")
    error_message = "The service must not run as the identity that writes bundles."
  }

  assert {
    condition     = google_service_account_iam_member.pods_act_as["serve"].member == "serviceAccount:my-project.svc.id.goog[levserve/levserve-serve]"
    error_message = "Workload Identity must tie the pod to its Google account."
  }

  assert {
    condition     = google_container_node_pool.tpu.node_config[0].workload_metadata_config[0].mode == "GKE_METADATA"
    error_message = "Pods must not reach the node's identity."
  }
}

run "no_public_access_by_default" {
  command = plan

  assert {
    condition     = local.gateway.spec.gatewayClassName == "gke-l7-rilb" && length(google_compute_global_address.gateway) == 0
    error_message = "The default gateway must be internal."
  }

  assert {
    condition     = kubernetes_service_v1.main.spec[0].type == "ClusterIP"
    error_message = "The Service must not have an address of its own."
  }
}

run "the_internet_comes_in_over_tls_with_a_key" {
  command = plan
  variables {
    gateway         = "external"
    hostname        = "llm.example.com"
    certificate_map = "my-map"
    secret_env      = { API_KEY = "levserve-api-key" }
  }

  assert {
    condition     = local.gateway.spec.listeners[0].protocol == "HTTPS" && local.gateway.metadata.annotations["networking.gke.io/certmap"] == "my-map"
    error_message = "An external gateway must speak TLS."
  }

  assert {
    condition = one([for variable in kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].env :
    variable.value_from[0].secret_key_ref[0].name if variable.name == "API_KEY" && try(length(variable.value), 0) == 0]) == "levserve-api-key"
    error_message = "The key must come from a secret."
  }

  assert {
    condition     = length([for manifest in local.manifests : manifest if manifest.kind == "RoleBinding"]) == 1 && local.pod_monitoring.spec.endpoints[0].authorization.credentials.secret.name == "levserve-api-key"
    error_message = "The metrics collector must know the key, and may read it."
  }

  assert {
    condition     = module.monitoring.uptime_checks[0].monitored_resource[0].labels["host"] == "llm.example.com"
    error_message = "What is public must be checked from outside."
  }
}

run "a_file_of_keys_is_a_volume" {
  command = plan
  variables {
    secret_env      = { API_KEY = "levserve-api-key" }
    key_file_secret = "levserve-api-keys"
  }

  assert {
    condition = (kubernetes_deployment_v1.main.spec[0].template[0].spec[0].volume[1].secret[0].secret_name == "levserve-api-keys"
    && "${kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].volume_mount[1].mount_path}/${kubernetes_deployment_v1.main.spec[0].template[0].spec[0].volume[1].secret[0].items[0].path}" == module.settings.env["API_KEY_FILE"])
    error_message = "The secret must be mounted where API_KEY_FILE says."
  }
}

run "long_answers_are_not_cut" {
  command = plan

  assert {
    condition     = local.backend_policy.spec.default.timeoutSec > tonumber(module.settings.env["REQUEST_TIMEOUT"])
    error_message = "The load balancer must wait longer than the service."
  }
}

run "everything_is_scraped_and_alerts" {
  command = plan

  assert {
    condition     = local.manifests[0].kind == "PodMonitoring"
    error_message = "Managed Prometheus must scrape the pods."
  }

  assert {
    condition     = toset(keys(module.monitoring.alert_queries)) == toset(["errors_5xx", "kv_cache_full", "no_ready_instance", "queue", "slow_start"])
    error_message = "There must be five alerts."
  }
}

run "a_levanter_checkpoint_is_prewarmed_with_levanter" {
  command = plan
  variables {
    prewarm_image = "us-central1-docker.pkg.dev/my-project/levserve/levserve-prewarm-tpu:1.0"
  }

  assert {
    condition = (kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0].container[0].image == var.prewarm_image
    && kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].image == var.image)
    error_message = "The job must run with Levanter, the service without."
  }
}

run "the_smoke_command_leaves_the_key_in_the_pod" {
  command = plan
  variables {
    secret_env = { API_KEY = "levserve-api-key" }
  }

  assert {
    condition     = output.smoke_command == "kubectl exec deployment/levserve --namespace=levserve -- bash -c 'printf %s \"$${API_KEY%%,*}\" | levserve smoke http://levserve.levserve.svc.cluster.local --timeout 3600 --api-key @/dev/stdin'"
    error_message = "It must be a command to copy."
  }
}

run "a_catalogue_is_served_and_compiled_as_a_whole" {
  command = plan
  variables {
    model_uri         = null
    models_config_uri = "gs://my-project-models/models.yaml"
    max_cached_models = 2
  }

  assert {
    condition = { for entry in kubernetes_deployment_v1.main.spec[0].template[0].spec[0].container[0].env : entry.name => entry.value if contains(["GCS_BUCKET", "MAX_CACHED_MODELS", "MODELS_CONFIG", "MODEL_URI"], entry.name) } == {
      MAX_CACHED_MODELS = "2"
      MODELS_CONFIG     = "gs://my-project-models/models.yaml"
    }
    error_message = "The service must read the file, and name no model of its own."
  }

  assert {
    condition     = jsonencode(kubernetes_job_v1.prewarm[0].spec[0].template[0].spec[0].container[0].args) == jsonencode(["prewarm", "--all"])
    error_message = "The job must compile for every model of the same catalogue."
  }
}

run "a_catalogue_is_compiled_in_cloud_build" {
  command = plan
  variables {
    model_uri        = null
    catalogue_prefix = "chat"
    tpu_machine_type = "ct6e-standard-4t"
    tpu_topology     = "2x2"
  }

  assert {
    condition     = strcontains(output.bundle_command, "_TARGET=v6e-4,_FLAGS=--all,") && terraform_data.bundle.input == output.bundle_command
    error_message = "Cloud Build must compile every model for the TPU of the service."
  }
}

run "a_tpu_that_is_compiled_for_only_on_it" {
  command = plan
  variables {
    tpu_machine_type = "tpu7x-standard-4t"
    tpu_topology     = "2x2x1"
  }

  assert {
    condition     = output.bundle_command == null
    error_message = "The job on the TPU must compile what Cloud Build cannot."
  }
}

run "at_rest_it_follows_the_requests_of_the_gateway" {
  command = plan
  variables {
    min_replicas = 0
    max_replicas = 2
    gateway      = "internal"
  }

  assert {
    condition     = length(kubernetes_horizontal_pod_autoscaler_v2.main) == 0 && kubernetes_deployment_v1.main.spec[0].replicas == "0"
    error_message = "Two autoscalers must not act on one deployment."
  }

  assert {
    condition = (length([for manifest in local.manifests : manifest if manifest.kind == "TriggerAuthentication"]) == 1
      && [for manifest in local.manifests : [manifest.spec.minReplicaCount, manifest.spec.maxReplicaCount] if manifest.kind == "ScaledObject"] == [[0, 2]]
    && length([for trigger in local.scaled_object.spec.triggers : trigger if strcontains(trigger.metadata.query, "https_internal_request_count")]) == 1)
    error_message = "KEDA must count the gateway's requests, and read them as itself."
  }
}

run "a_service_that_always_runs_needs_no_keda" {
  command = plan

  assert {
    condition     = length([for manifest in local.manifests : manifest if startswith(manifest.apiVersion, "keda.sh")]) == 0
    error_message = "A cluster without KEDA has no such resources."
  }
}
