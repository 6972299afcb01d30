"""Several nodes that train a stage: pods that the step's own pod starts and ends."""
