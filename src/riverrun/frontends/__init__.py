"""Front ends: what users write programs with. Each of them builds a plan."""
