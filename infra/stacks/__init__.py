"""Stacks, registered idempotently."""
