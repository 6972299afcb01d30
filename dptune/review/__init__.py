"""Reviews of what a detector marked: samples, decisions, lists, missing rate."""
