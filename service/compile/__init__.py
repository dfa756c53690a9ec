"""Any function and its shapes to executables, ahead of traffic. Knows no engine."""
