output "alert_queries" {
  description = "The query of each alert."
  value       = { for key, alert in local.alerts : key => alert.query }
}

output "dashboard" {
  description = "The dashboard as it is sent."
  value       = jsondecode(google_monitoring_dashboard.main.dashboard_json)
}

output "uptime_checks" {
  description = "The uptime checks: one, or none."
  value       = google_monitoring_uptime_check_config.main
}
