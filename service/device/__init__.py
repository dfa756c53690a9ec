"""The hardware: its memory, and how arrays are laid over it."""
