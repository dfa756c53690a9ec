"""The process: the open port, what answers before the API is there, and the service behind both."""
