"""Pages: what each report says, in blocks."""
