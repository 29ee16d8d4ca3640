"""Fuzz `targets` with the name of this file."""

from tests.fuzz.running import main

if __name__ == "__main__":
    main("acknowledgements")
