"""The flags that people type: those of the settings, those of vLLM, and what is printed about them."""
