"""Speed, quality, memory and starts of weights in 8 bits."""
