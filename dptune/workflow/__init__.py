"""What a step calls: one function over several rooms, with no orchestrator."""
