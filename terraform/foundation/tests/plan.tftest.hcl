mock_provider "google" {}

variables {
  project_id         = "my-project"
  model_bucket_name  = "my-project-models"
  bundle_bucket_name = "my-project-bundles"
  model_writers      = ["group:ml@example.com"]
}

run "data_is_private_and_hard_to_lose" {
  command = plan

  assert {
    condition = alltrue([for bucket in [google_storage_bucket.models, google_storage_bucket.bundles] :
      bucket.public_access_prevention == "enforced" && bucket.uniform_bucket_level_access
    && !bucket.force_destroy && bucket.versioning[0].enabled])
    error_message = "Both data buckets must be private, versioned, and not emptied by a destroy."
  }

  assert {
    condition     = google_storage_bucket.models.location == "us-central1" && google_storage_bucket.bundles.location == "us-central1"
    error_message = "The buckets must lie in the region of the accelerators."
  }
}

run "only_the_prewarm_identity_writes_bundles" {
  command = plan

  assert {
    condition = (google_storage_bucket_iam_member.bundles_write.bucket == "my-project-bundles"
      && google_storage_bucket_iam_member.bundles_write.role == "roles/storage.objectUser"
    && google_storage_bucket_iam_member.bundles_write.member == "serviceAccount:levserve-prewarm@my-project.iam.gserviceaccount.com")
    error_message = "The prewarm identity must be able to write bundles."
  }

  assert {
    condition = (google_storage_bucket_iam_member.bundles_read.role == "roles/storage.objectViewer"
    && google_storage_bucket_iam_member.bundles_read.member == "serviceAccount:levserve-serve@my-project.iam.gserviceaccount.com")
    error_message = "The serving identity must read bundles and not write them."
  }

  assert {
    condition = alltrue([for grant in concat(
      values(google_storage_bucket_iam_member.models_read), values(google_storage_bucket_iam_member.models_write),
      [google_storage_bucket_iam_member.build_sources_read],
    ) : grant.bucket != "my-project-bundles"])
    error_message = "No other grant may be on the bundle bucket."
  }

  assert {
    condition     = alltrue([for grant in google_project_iam_member.main : !can(regex("storage|owner|editor|admin", lower(grant.role)))])
    error_message = "No identity may reach buckets through a role on the whole project."
  }
}

run "models_are_read_by_those_who_load_them_and_written_by_those_named" {
  command = plan

  assert {
    condition     = alltrue([for grant in google_storage_bucket_iam_member.models_read : grant.role == "roles/storage.objectViewer"])
    error_message = "Serve and prewarm read models only."
  }

  assert {
    condition     = keys(google_storage_bucket_iam_member.models_write) == ["group:ml@example.com"]
    error_message = "Only model_writers may write models."
  }
}

run "weights_travel_over_googles_network" {
  command = plan

  assert {
    condition     = google_compute_subnetwork.main.private_ip_google_access && !google_compute_network.main.auto_create_subnetworks
    error_message = "The subnet needs Private Google Access."
  }
}

run "old_images_go_and_the_newest_stay" {
  command = plan

  assert {
    condition = anytrue([for policy in google_artifact_registry_repository.main.cleanup_policies :
    policy.action == "KEEP" && try(policy.most_recent_versions[0].keep_count, 0) == 5])
    error_message = "The newest images must be kept whatever their age."
  }

  assert {
    condition     = anytrue([for policy in google_artifact_registry_repository.main.cleanup_policies : policy.action == "DELETE"])
    error_message = "Old images must be deleted."
  }
}

run "start_phases_are_measured" {
  command = plan

  assert {
    condition = (google_logging_metric.start_phase.label_extractors["phase"] == "EXTRACT(jsonPayload.phase)"
    && google_logging_metric.start_phase.value_extractor == "EXTRACT(jsonPayload.seconds)")
    error_message = "The metric of the start must tell the phases apart."
  }
}

run "the_other_roots_get_what_they_need" {
  command = plan

  assert {
    condition     = strcontains(output.build_command, "levserve-deploy@my-project.iam.gserviceaccount.com")
    error_message = "The build must run as the deploy identity."
  }

  assert {
    condition = alltrue([for text in [output.cloud_run_tfvars, output.gke_tfvars] :
    strcontains(text, "prewarm_account_email = \"levserve-prewarm@my-project.iam.gserviceaccount.com\"")])
    error_message = "Both roots must get the prewarm identity."
  }
}
