# A cluster whose system nodes are in the zone of v5e TPUs.
zone = "us-central1-a"
