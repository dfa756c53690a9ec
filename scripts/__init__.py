"""Scripts that developers and CI run."""
