"""Riverrun keeps the answers of a Python program up to date while its data changes."""

from riverrun.errors import (
    CheckpointError,
    OperatorFailed,
    PlanError,
    RiverrunError,
    SchemaError,
    TimeViolation,
    TransportError,
)

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "OperatorFailed",
    "PlanError",
    "RiverrunError",
    "SchemaError",
    "TimeViolation",
    "TransportError",
]
