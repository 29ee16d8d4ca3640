"""Online learning: FTRL, and the mini-batches that it trains on. `riverrun.learning` gathers it."""
