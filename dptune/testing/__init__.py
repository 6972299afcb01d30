"""Toy models and statistical bounds for tests. Only tests import this."""
