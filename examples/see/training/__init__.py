"""How the demo model that sees is trained."""
