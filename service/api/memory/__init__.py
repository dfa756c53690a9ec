"""Responses that outlive their requests, and the instance that made them."""
