"""The synchronous agents."""
