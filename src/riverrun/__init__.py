"""Riverrun keeps the answers of a Python program up to date while its data changes."""

__version__ = "0.1.0"
