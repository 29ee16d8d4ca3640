"""Graph algorithms: components, paths, neighbourhoods, ranks, cycles in time. `riverrun.graphs` gathers them."""
