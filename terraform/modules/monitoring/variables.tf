variable "alerts" {
  description = "Alerts by key: a title, a PromQL query, seconds until it fires, a severity, and what to do."
  type        = map(object({ title = string, query = string, wait_s = number, severity = string, next_step = string }))

  validation {
    condition     = alltrue([for alert in values(var.alerts) : contains(["CRITICAL", "ERROR", "WARNING"], alert.severity)])
    error_message = "The severity of an alert must be CRITICAL, ERROR or WARNING."
  }
}

variable "notification_channels" {
  description = "Recipients of alerts: ids such as projects/PROJECT/notificationChannels/NUMBER."
  type        = list(string)
}

variable "project_id" {
  description = "The Google Cloud project."
  type        = string
}

variable "tiles" {
  description = "Charts of the dashboard, two in a row: a title and a PromQL query."
  type        = list(object({ title = string, query = string }))
}

variable "title" {
  description = "Name of the service in the titles of dashboard, alerts and uptime check."
  type        = string
}

variable "uptime_host" {
  description = "The host to check for readiness from outside, or null for no check."
  type        = object({ name = string })
}

variable "uptime_identity_enabled" {
  description = "Whether the uptime check sends an ID token of Monitoring's service agent."
  type        = bool
}
