"""State that many nodes write and read, by key and by the application's own time (`frontends.shared`)."""
