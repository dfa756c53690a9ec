"""The compiled functions of an encoder: their names, and the programs."""
