"""Transcribe recordings with the service."""
