"""How families of models write: one description each, and what follows from it."""
