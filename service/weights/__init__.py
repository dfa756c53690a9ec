"""Bytes of a checkpoint to arrays, on the host or on the device, every one of them checked."""
