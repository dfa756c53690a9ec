# Dashboard, uptime check and alerts of this service. The log-based metrics of the start come from the foundation root.

locals {
  # An uptime check is traffic: it would keep one instance of a service that scales to zero running. It comes from the
  # internet, so an internal service has none.
  has_uptime_check = var.min_instances > 0 && var.ingress == "INGRESS_TRAFFIC_ALL"
  log_metric       = "logging_googleapis_com:user_${replace(var.log_metric_prefix, "-", "_")}"

  of_service = "monitored_resource=\"cloud_run_revision\",service_name=\"${var.service_name}\""
  of_sidecar = "service_name=\"${var.service_name}\""

  charts = {
    requests       = "sum by (response_code_class) (rate(run_googleapis_com:request_count{${local.of_service}}[1m]))"
    latency        = "histogram_quantile(0.95, sum by (le) (rate(run_googleapis_com:request_latencies_bucket{${local.of_service}}[5m])))"
    instances      = "sum by (state) (run_googleapis_com:container_instance_count{${local.of_service}})"
    pending        = "sum(run_googleapis_com:pending_queue_pending_requests{${local.of_service}})"
    start          = "histogram_quantile(0.95, sum by (le) (increase(${local.log_metric}_start_seconds_bucket{${local.of_service}}[1h])))"
    start_phases   = "histogram_quantile(0.95, sum by (le, phase) (increase(${local.log_metric}_start_phase_seconds_bucket{${local.of_service}}[1h])))"
    slots          = "sum(levserve_num_requests_running{${local.of_sidecar}})"
    waiting        = "sum(levserve_num_requests_waiting{${local.of_sidecar}})"
    kv_pages       = "max(levserve_kv_cache_usage_perc{${local.of_sidecar}})"
    tokens         = "sum(rate(levserve_generation_tokens_total{${local.of_sidecar}}[1m]))"
    first_token    = "histogram_quantile(0.95, sum by (le) (rate(levserve_time_to_first_token_seconds_bucket{${local.of_sidecar}}[5m])))"
    bundles        = "sum by (outcome) (increase(levserve_bundle_load_total{${local.of_sidecar}}[1h]))"
    late_compiling = "sum(increase(levserve_xla_compiles_after_ready_total{${local.of_sidecar}}[1h]))"
  }

  platform_tiles = [
    { title = "Requests per second, by status", query = local.charts.requests },
    { title = "Request latency, 95th percentile (ms)", query = local.charts.latency },
    { title = "Instances, active and idle", query = local.charts.instances },
    { title = "Requests that wait for an instance", query = local.charts.pending },
    { title = "Start, 95th percentile (s)", query = local.charts.start },
    { title = "Start by phase, 95th percentile (s)", query = local.charts.start_phases },
  ]
  sidecar_tiles = var.metrics_sidecar_enabled ? [
    { title = "Slots in use", query = local.charts.slots },
    { title = "Requests that wait for a slot", query = local.charts.waiting },
    { title = "KV pages in use, fullest instance (0 to 1)", query = local.charts.kv_pages },
    { title = "Generated tokens per second", query = local.charts.tokens },
    { title = "Time to first token, 95th percentile (s)", query = local.charts.first_token },
    { title = "Bundles found and missed", query = local.charts.bundles },
    { title = "Compilations after ready (must stay 0)", query = local.charts.late_compiling },
  ] : []
  tiles = concat(local.platform_tiles, local.sidecar_tiles)

  alerts = merge(
    {
      errors_5xx = {
        title     = "more than 5 % of the answers are 5xx"
        query     = "sum(rate(run_googleapis_com:request_count{${local.of_service},response_code_class=\"5xx\"}[5m])) / sum(rate(run_googleapis_com:request_count{${local.of_service}}[5m])) > 0.05"
        wait_s    = 300
        severity  = "ERROR"
        next_step = "Read the log lines of severity ERROR. If a new revision took traffic before: move it back (output rollback_command)."
      }
      no_ready_instance = {
        title     = "requests wait and no instance answers"
        query     = "sum(min_over_time(run_googleapis_com:pending_queue_pending_requests{${local.of_service}}[5m])) > 0 unless sum(rate(run_googleapis_com:request_count{${local.of_service},response_code_class=\"2xx\"}[5m])) > 0"
        wait_s    = 600
        severity  = "CRITICAL"
        next_step = "Instances do not get ready, or there is no GPU left in quota or region. Read the log of the newest instance: each phase of the start has a line."
      }
      queue = {
        title     = "requests wait for long"
        query     = var.metrics_sidecar_enabled ? "sum(min_over_time(levserve_num_requests_waiting{${local.of_sidecar}}[5m])) > ${var.slots}" : "sum(min_over_time(run_googleapis_com:pending_queue_pending_requests{${local.of_service}}[5m])) > ${var.slots}"
        wait_s    = 300
        severity  = "WARNING"
        next_step = "All slots are taken. Raise max_instances (and the GPU quota), or slots if KV pages are free."
      }
      slow_start = {
        title     = "starts take more than ${var.alert_start_s} s"
        query     = "${local.charts.start} > ${var.alert_start_s}"
        wait_s    = 0
        severity  = "WARNING"
        next_step = "Look at the phases on the dashboard. Long `executables`: no bundle fits, run the prewarm job. Long `weights`: region of the bucket, or the network."
      }
    },
    var.metrics_sidecar_enabled ? {
      kv_cache_full = {
        title     = "KV pages are full"
        query     = "max(min_over_time(levserve_kv_cache_usage_perc{${local.of_sidecar}}[5m])) > 0.95"
        wait_s    = 300
        severity  = "WARNING"
        next_step = "Requests wait for pages, not for slots. Lower max_model_len or slots, or choose a GPU with more memory."
      }
    } : {},
  )
}

module "monitoring" {
  source = "../modules/monitoring"

  alerts                  = local.alerts
  notification_channels   = var.notification_channels
  project_id              = var.project_id
  tiles                   = local.tiles
  title                   = var.service_name
  uptime_host             = local.has_uptime_check ? { name = trimprefix(google_cloud_run_v2_service.main.uri, "https://") } : null
  uptime_identity_enabled = true
}
