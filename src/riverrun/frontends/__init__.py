"""How you say it: the front ends, each of which builds a plan."""
