"""One file per contender that runs in a process, and mostly in an environment, of its own."""
