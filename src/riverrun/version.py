"""Which version this is: in every checkpoint, and what tasks compare when they look for this package."""

__version__ = "0.1.0"
