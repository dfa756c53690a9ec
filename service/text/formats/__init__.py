"""Formats of answers: a description of each family, and the reader, the grammar and the history that follow from it."""
