"""Twenty programs that data engineers have: docs/cookbook shows them, tests/cookbook recomputes their outputs."""
