"""Logs, metrics, traces and progress for operators."""
