"""The work for requests besides their steps: long bodies in turn, and threads."""
