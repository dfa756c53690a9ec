"""One batch in shards: several processes answer chunks of the same input, each into an object that is created once.

Nobody hands out work. The chunks are a function of the input, a part exists or does not, and a claim only spares two
processes the same work.
"""
