"""What every route shares: framing, bodies, limits, keys, logs, errors, cancellation."""
