"""Twenty programs that data engineers have: docs/cookbook.md shows them, tests/cookbook recomputes what they give."""
