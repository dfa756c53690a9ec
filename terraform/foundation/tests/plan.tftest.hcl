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
    condition = alltrue([for bucket in [google_storage_bucket.models[0], google_storage_bucket.bundles[0]] :
      bucket.public_access_prevention == "enforced" && bucket.uniform_bucket_level_access
    && !bucket.force_destroy && bucket.versioning[0].enabled])
    error_message = "Both data buckets must be private, versioned, and not emptied by a destroy."
  }

  assert {
    condition     = google_storage_bucket.models[0].location == "us-central1" && google_storage_bucket.bundles[0].location == "us-central1"
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
      [google_storage_bucket_iam_member.models_import, google_storage_bucket_iam_member.build_sources_read],
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
    error_message = "Only model_writers may write models, and the import."
  }

  assert {
    condition     = google_project_iam_member.main["prewarm/logs"].role == "roles/logging.logWriter" && google_artifact_registry_repository_iam_member.prewarm_reads_images.role == "roles/artifactregistry.reader"
    error_message = "A build as the prewarm identity must pull its image and write its log."
  }

  assert {
    condition = (google_storage_bucket_iam_member.models_import.role == "roles/storage.objectUser"
    && google_storage_bucket_iam_member.models_import.member == "serviceAccount:levserve-import@my-project.iam.gserviceaccount.com")
    error_message = "The import identity must be able to write models."
  }
}

run "weights_travel_over_googles_network" {
  command = plan

  assert {
    condition     = google_compute_subnetwork.main[0].private_ip_google_access && !google_compute_network.main[0].auto_create_subnetworks
    error_message = "The subnet needs Private Google Access."
  }
}

run "old_images_go_and_the_newest_stay" {
  command = plan

  assert {
    condition = anytrue([for policy in google_artifact_registry_repository.main[0].cleanup_policies :
    policy.action == "KEEP" && try(policy.most_recent_versions[0].keep_count, 0) == 5])
    error_message = "The newest images must be kept whatever their age."
  }

  assert {
    condition     = anytrue([for policy in google_artifact_registry_repository.main[0].cleanup_policies : policy.action == "DELETE"])
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
    condition = alltrue([for text in [output.cloud_run_tfvars, output.gke_tpu_tfvars] :
    strcontains(text, "prewarm_account_email = \"levserve-prewarm@my-project.iam.gserviceaccount.com\"")])
    error_message = "Both roots must get the prewarm identity."
  }
}

run "what_exists_is_used_as_it_is" {
  command = plan
  variables {
    network               = "shared"
    subnetwork            = "shared-us-central1"
    repository            = "images"
    model_bucket_created  = false
    bundle_bucket_created = false
  }

  assert {
    condition = (length(google_compute_network.main) + length(google_compute_subnetwork.main) + length(google_artifact_registry_repository.main)
    + length(google_storage_bucket.models) + length(google_storage_bucket.bundles) == 0)
    error_message = "Nothing that exists may be created again."
  }

  assert {
    condition     = google_storage_bucket_iam_member.bundles_write.bucket == "my-project-bundles" && google_artifact_registry_repository_iam_member.deploy_writes_images.repository == "images"
    error_message = "The grants must be on what exists."
  }

  assert {
    condition     = strcontains(output.cloud_run_tfvars, "subnetwork            = \"shared-us-central1\"") && output.image_prefix == "us-central1-docker.pkg.dev/my-project/images"
    error_message = "The other roots must get what exists."
  }
}

run "data_goes_only_when_told_to" {
  command = plan
  variables {
    data_deletion_enabled = true
  }

  assert {
    condition     = google_storage_bucket.models[0].force_destroy && google_storage_bucket.bundles[0].force_destroy
    error_message = "A teardown must be possible without editing."
  }
}

run "two_foundations_do_not_collide" {
  command = plan
  variables {
    name = "team-b"
  }

  assert {
    condition     = google_logging_metric.start.name == "team-b/start_seconds" && google_logging_metric.start_phase.name == "team-b/start_phase_seconds"
    error_message = "Log metrics are named across the project."
  }
}

run "the_apis_of_every_feature_are_on" {
  command = plan

  assert {
    condition     = alltrue([for api in ["containerfilesystem", "certificatemanager", "run", "container", "artifactregistry", "secretmanager"] : contains(keys(google_project_service.main), "${api}.googleapis.com")])
    error_message = "Image streaming and the gateway's certificates need their APIs."
  }

  assert {
    condition     = google_project_iam_member.main["serve/logs"].role == "roles/logging.logWriter"
    error_message = "The sidecar writes its log as the serving identity."
  }
}
