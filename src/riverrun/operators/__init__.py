"""The primitive operators; everything else is composed of them."""
