"""Plans: what is to be done, as nodes and edges; what an operator is; where rows lie; what a change makes differ."""
