"""Doors for the scripts of other libraries: their loop, our steps."""
