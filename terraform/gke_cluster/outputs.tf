output "adapter_command" {
  description = "Installs the adapter through which the autoscaler reads Cloud Monitoring, once per cluster."
  value       = "kubectl apply --filename=https://raw.githubusercontent.com/GoogleCloudPlatform/k8s-stackdriver/cm-sd-adapter-v${var.metrics_adapter_version}/custom-metrics-stackdriver-adapter/deploy/production/adapter_new_resource_model.yaml"
}

output "credentials_command" {
  description = "Points kubectl and the gke_tpu root at the cluster; tokens are fetched by gke-gcloud-auth-plugin and renewed as needed."
  value       = "gcloud container clusters get-credentials ${google_container_cluster.main.name} --location=${var.region} --project=${var.project_id} --dns-endpoint"
}

output "keda_command" {
  description = "Installs KEDA, once per cluster and in place of the adapter, for services with min_replicas = 0: both would answer for external metrics."
  value       = "kubectl apply --server-side --filename=https://github.com/kedacore/keda/releases/download/v${var.keda_version}/keda-${var.keda_version}.yaml"
}

output "kubernetes_context" {
  description = "The context of the kubeconfig that credentials_command writes: the value of KUBE_CTX."
  value       = "gke_${var.project_id}_${var.region}_${google_container_cluster.main.name}"
}
