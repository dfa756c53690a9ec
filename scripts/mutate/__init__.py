"""Mutation testing: change the service one place at a time, and count the changes that no test notices."""
