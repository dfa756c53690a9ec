"""Google Cloud's documented rules as data, held against plans, builds and documented commands."""
