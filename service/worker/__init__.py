"""Worker processes: untrusted or long work, with limits of memory and time."""
