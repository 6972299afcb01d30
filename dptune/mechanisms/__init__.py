"""Mechanisms of the papers: one short file each."""
