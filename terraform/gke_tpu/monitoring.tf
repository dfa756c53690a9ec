# Dashboard, uptime check and alerts of this service. The log-based metrics of the start come from the foundation root.

locals {
  log_metric    = "logging_googleapis_com:user_${replace(var.log_metric_prefix, "-", "_")}"
  of_pods       = "cluster=\"${var.cluster_name}\",namespace=\"${local.namespace}\""
  of_logs       = "monitored_resource=\"k8s_container\",cluster_name=\"${var.cluster_name}\",namespace_name=\"${local.namespace}\",container_name=\"levserve\""
  of_deployment = "${local.of_pods},deployment=\"${var.service_name}\""

  charts = {
    requests       = "sum by (status) (rate(levserve_http_responses_total{${local.of_pods}}[1m]))"
    latency        = "histogram_quantile(0.95, sum by (le) (rate(levserve_e2e_request_latency_seconds_bucket{${local.of_pods}}[5m])))"
    first_token    = "histogram_quantile(0.95, sum by (le) (rate(levserve_time_to_first_token_seconds_bucket{${local.of_pods}}[5m])))"
    tokens         = "sum(rate(levserve_generation_tokens_total{${local.of_pods}}[1m]))"
    slots          = "sum(levserve_num_requests_running{${local.of_pods}})"
    waiting        = "sum(levserve_num_requests_waiting{${local.of_pods}})"
    kv_pages       = "max(levserve_kv_cache_usage_perc{${local.of_pods}})"
    replicas       = "max(kube_deployment_status_replicas_available{${local.of_deployment}})"
    start          = "histogram_quantile(0.95, sum by (le) (increase(${local.log_metric}_start_seconds_bucket{${local.of_logs}}[1h])))"
    start_phases   = "histogram_quantile(0.95, sum by (le, phase) (increase(${local.log_metric}_start_phase_seconds_bucket{${local.of_logs}}[1h])))"
    bundles        = "sum by (outcome) (increase(levserve_bundle_load_total{${local.of_pods}}[1h]))"
    late_compiling = "sum(increase(levserve_xla_compiles_after_ready_total{${local.of_pods}}[1h]))"
  }

  tiles = [
    { title = "Requests per second, by status", query = local.charts.requests },
    { title = "Request latency, 95th percentile (s)", query = local.charts.latency },
    { title = "Time to first token, 95th percentile (s)", query = local.charts.first_token },
    { title = "Generated tokens per second", query = local.charts.tokens },
    { title = "Slots in use", query = local.charts.slots },
    { title = "Requests that wait for a slot", query = local.charts.waiting },
    { title = "KV pages in use, fullest pod (0 to 1)", query = local.charts.kv_pages },
    { title = "Ready replicas", query = local.charts.replicas },
    { title = "Start, 95th percentile (s)", query = local.charts.start },
    { title = "Start by phase, 95th percentile (s)", query = local.charts.start_phases },
    { title = "Bundles found and missed", query = local.charts.bundles },
    { title = "Compilations after ready (must stay 0)", query = local.charts.late_compiling },
  ]

  alerts = {
    errors_5xx = {
      title     = "more than 5 % of the answers are 5xx"
      query     = "sum(rate(levserve_http_responses_total{${local.of_pods},status=~\"5..\",route=~\"/v1/.*\"}[5m])) / sum(rate(levserve_http_responses_total{${local.of_pods},route=~\"/v1/.*\"}[5m])) > 0.05"
      wait_s    = 300
      severity  = "ERROR"
      next_step = "Read the log lines of severity ERROR. After a rollout: kubectl rollout undo, then put the image back in the tfvars."
    }
    no_ready_instance = {
      title     = "no replica is ready"
      query     = "(max(kube_deployment_status_replicas_available{${local.of_deployment}}) < 1 and max(kube_deployment_spec_replicas{${local.of_deployment}}) > 0) or absent(kube_deployment_status_replicas_available{${local.of_deployment}})"
      wait_s    = 600
      severity  = "CRITICAL"
      next_step = "kubectl describe pod says whether a TPU is missing (quota, zone, spot) or the start fails; each phase of the start has a log line."
    }
    queue = {
      title     = "requests wait for long"
      query     = "min_over_time(sum(levserve_num_requests_waiting{${local.of_pods}})[5m:1m]) > ${var.max_replicas * var.waiting_requests_per_replica}"
      wait_s    = 300
      severity  = "WARNING"
      next_step = "The autoscaler is at its end or waits for TPUs. Raise max_replicas, or look for capacity in another zone."
    }
    kv_cache_full = {
      title     = "KV pages are full"
      query     = "max(min_over_time(levserve_kv_cache_usage_perc{${local.of_pods}}[5m])) > 0.95"
      wait_s    = 300
      severity  = "WARNING"
      next_step = "Requests wait for pages, not for slots. Lower max_model_len or slots, or choose a machine with more chips."
    }
    slow_start = {
      title     = "starts take more than ${var.alert_start_s} s"
      query     = "${local.charts.start} > ${var.alert_start_s}"
      wait_s    = 0
      severity  = "WARNING"
      next_step = "Look at the phases on the dashboard. Long `executables`: no bundle fits, prewarm. Long `weights`: region of the bucket, or the network."
    }
  }
}

module "monitoring" {
  source = "../modules/monitoring"

  alerts                  = local.alerts
  notification_channels   = var.notification_channels
  project_id              = var.project_id
  tiles                   = local.tiles
  title                   = "${var.service_name} on GKE"
  uptime_host             = var.gateway == "external" ? { name = var.hostname } : null
  uptime_identity_enabled = false
}
