"""The functions that are traced and compiled, and the arrays that go into them."""
