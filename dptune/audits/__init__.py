"""Lower bounds of epsilon from canaries, and step-level checks of the engine."""
