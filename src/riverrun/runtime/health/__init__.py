"""Which workers are slow or late, and what the run does about that."""
