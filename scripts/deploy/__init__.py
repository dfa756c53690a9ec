"""From a clone to an answered request: `make deploy-cloud-run`, `make deploy-gke`, `make teardown`."""
