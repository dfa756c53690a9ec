"""Measurements of a service of many models: loads, swaps, models side by side, a long catalogue."""
