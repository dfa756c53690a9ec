"""What all tests share: strict arrays, no network beyond loopback, and one cache that ends with the session."""

import atexit
import os
import shutil
import tempfile

# Before jax is imported anywhere: CPU, and two devices so that sharding is seen.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Services under test find one another's bundles, so only the first of a kind compiles; never those of the machine.
os.environ["LOCAL_MODEL_CACHE"] = tempfile.mkdtemp(prefix="levserve-tests-")
atexit.register(shutil.rmtree, os.environ["LOCAL_MODEL_CACHE"], ignore_errors=True)
