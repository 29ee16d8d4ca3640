"""The shared-state front end: states that many streams update and fetch from, and their rules."""
