"""The hardware: its memory, and the sharding of arrays over devices."""
