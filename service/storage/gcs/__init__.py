"""Google Cloud Storage over HTTP."""
