"""`make bench-audio`: seconds of sound that are heard in a second, of Levserve and of its peers."""
