"""What carries the engine, with I/O: clusters in one thread or in processes, and the connections between those."""
