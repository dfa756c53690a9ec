# An uptime check, alerts and a dashboard of one service, from lists that a root writes.

terraform {
  required_version = ">= 1.11"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 8.0"
    }
  }
}

locals {
  alerts = merge(
    var.alerts,
    var.uptime_host == null ? {} : {
      uptime = {
        title     = "the uptime check fails"
        query     = "avg(avg_over_time(monitoring_googleapis_com:uptime_check_check_passed{check_id=\"${google_monitoring_uptime_check_config.main[0].uptime_check_id}\"}[5m])) < 0.5"
        wait_s    = 120
        severity  = "CRITICAL"
        next_step = "The service is not reachable or not ready from outside."
      }
    },
  )
}

resource "google_monitoring_uptime_check_config" "main" {
  count = var.uptime_host == null ? 0 : 1

  project      = var.project_id
  display_name = "${var.title} is ready"
  period       = "60s"
  timeout      = "10s"

  http_check {
    path         = "/health/ready"
    port         = 443
    use_ssl      = true
    validate_ssl = true

    dynamic "service_agent_authentication" {
      for_each = var.uptime_identity_enabled ? ["OIDC_TOKEN"] : []
      content {
        type = service_agent_authentication.value
      }
    }
  }

  monitored_resource {
    type = "uptime_url"
    labels = {
      project_id = var.project_id
      host       = var.uptime_host.name
    }
  }
}

resource "google_monitoring_alert_policy" "main" {
  for_each = local.alerts

  project               = var.project_id
  display_name          = "${var.title}: ${each.value.title}"
  combiner              = "OR"
  severity              = each.value.severity
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.title
    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = "${each.value.wait_s}s"
      evaluation_interval       = "60s"
      disable_metric_validation = true # a service without requests has no series yet
    }
  }

  documentation {
    mime_type = "text/markdown"
    content   = each.value.next_step
  }

  alert_strategy {
    auto_close = "3600s"
  }
}

resource "google_monitoring_dashboard" "main" {
  project = var.project_id
  dashboard_json = jsonencode({
    displayName = "Levserve: ${var.title}"
    mosaicLayout = {
      columns = 48
      tiles = [for index, tile in var.tiles : {
        xPos   = 24 * (index % 2)
        yPos   = 16 * floor(index / 2)
        width  = 24
        height = 16
        widget = {
          title = tile.title
          xyChart = {
            dataSets = [{
              plotType        = "LINE"
              timeSeriesQuery = { prometheusQuery = tile.query }
            }]
          }
        }
      }]
    }
  })
}
