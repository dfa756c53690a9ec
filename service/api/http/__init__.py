"""HTTP for all routes: keys, bodies, logs, errors, cancellation, framing."""
