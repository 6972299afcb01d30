"""Languages: which one a text is in, rules and names of twelve, and who reads what."""
