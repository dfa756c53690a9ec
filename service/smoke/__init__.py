"""`levserve smoke URL`: whether a deployed service may take traffic. A client: it knows HTTP, nothing of the server."""
