"""ZenML pipelines: wiring only."""
