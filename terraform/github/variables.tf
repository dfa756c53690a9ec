variable "github_repository" {
  description = "OWNER/NAME of the repository on GitHub whose workflows publish images and test deployments."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$", var.github_repository))
    error_message = "github_repository must be OWNER/NAME, without https:// and without .git."
  }
}

variable "name" {
  description = "Prefix of everything that this root creates, as of the foundation root."
  type        = string
  default     = "levserve"
}

variable "project_id" {
  description = "The Google Cloud project."
  type        = string
}

variable "region" {
  description = "Region of the Docker repository of the foundation root."
  type        = string
  default     = "us-central1"
}

variable "repository" {
  description = "The Docker repository of the foundation root in Artifact Registry."
  type        = string
  default     = "levserve"
}
