"""`levserve smoke URL`: test whether a deployed service can take traffic, using only its HTTP API."""
