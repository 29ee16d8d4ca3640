"""The version of this package: it is in every checkpoint, and tasks compare it when they look for this package."""

__version__ = "0.1.0"
