# Who is told of alerts.

resource "google_monitoring_notification_channel" "email" {
  count = var.alert_email == "" ? 0 : 1

  project      = var.project_id
  display_name = "${var.name} alerts"
  type         = "email"
  labels       = { email_address = var.alert_email }

  depends_on = [google_project_service.main]
}
