"""Operators of iterations: what only the loops of `frontends.collections.delta` need."""
