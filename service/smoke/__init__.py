"""`levserve smoke URL`: test whether a deployed service may take traffic, as a client that knows only its HTTP API."""
