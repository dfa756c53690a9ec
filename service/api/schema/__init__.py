"""The bodies of requests: their fields, ranges, and the fields that are refused by name."""
