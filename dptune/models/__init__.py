"""Models, tokenizers and token records: load, build, save, adapt, encode."""
