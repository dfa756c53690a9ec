# Log-based metrics of the start. They are in this root because both platforms write the same lines, and alerts require
# that the metric exists. Their names begin with `name`, so that two foundations of a project do not collide.

locals {
  service_logs = "(resource.type=\"cloud_run_revision\" OR resource.type=\"k8s_container\")"
}

resource "google_logging_metric" "start_phase" {
  project     = var.project_id
  name        = "${var.name}/start_phase_seconds"
  description = "Seconds of each phase of a start; `ready` in the log sums them up."
  filter      = "${local.service_logs} AND jsonPayload.message=~\"^start: \" AND jsonPayload.seconds>=0"

  value_extractor  = "EXTRACT(jsonPayload.seconds)"
  label_extractors = { phase = "EXTRACT(jsonPayload.phase)" }

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "s"

    labels {
      key         = "phase"
      value_type  = "STRING"
      description = "The phase of the start."
    }
  }

  bucket_options {
    exponential_buckets {
      num_finite_buckets = 32
      growth_factor      = 1.4
      scale              = 0.05 # 50 ms to 40 minutes
    }
  }

  depends_on = [google_project_service.main]
}

resource "google_logging_metric" "start" {
  project     = var.project_id
  name        = "${var.name}/start_seconds"
  description = "Seconds from the start of the process to the first real token."
  filter      = "${local.service_logs} AND jsonPayload.message=\"ready\" AND jsonPayload.seconds>=0"

  value_extractor = "EXTRACT(jsonPayload.seconds)"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "s"
  }

  bucket_options {
    exponential_buckets {
      num_finite_buckets = 32
      growth_factor      = 1.4
      scale              = 0.05
    }
  }

  depends_on = [google_project_service.main]
}
