"""The scheduler: plain Python over token counts and page numbers, without jax."""
