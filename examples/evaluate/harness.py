# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["lm-eval[api]==0.4.13"]
# ///
"""lm-eval's own command line, in an environment of its own with the versions of the lock.

uv run --locked --script examples/evaluate/harness.py --help
"""

import sys

from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    sys.exit(cli_evaluate())
