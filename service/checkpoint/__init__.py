"""Bytes in a bucket to weights on the device."""
