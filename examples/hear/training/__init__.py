"""How the demo model that hears is trained."""
