"""The functions that are traced and compiled, and the arrays that they take."""
