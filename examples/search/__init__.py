"""Search a folder of texts by meaning, and answer from what is found."""
