"""How a plan runs: nodes and their operators, one worker's share of them, and who keeps the workers in step."""
