"""A small shop, for the fleet to test."""
