"""Commands without a server: `levserve batch`, `compare`, `convert` and `import`."""
