"""Channels: where messages come from and answers go to."""
