"""One module for each format that a configuration can be written in: text in, nodes with their places out."""

from __future__ import annotations
