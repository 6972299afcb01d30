"""Read, check, deduplicate and split text corpora; generate synthetic ones."""
