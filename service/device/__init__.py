"""The hardware: memory sizes, device kinds, and the sharding of arrays over devices."""
