"""What all tests share: strict arrays and no network beyond loopback."""

import os

# Before jax is imported anywhere: CPU, and two devices so that sharding is seen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
