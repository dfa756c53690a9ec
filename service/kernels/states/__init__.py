"""Recurrent layers: what a step reads from the slots of states, computes, and writes to them."""
