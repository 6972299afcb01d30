"""ZenML steps: thin typed adapters over `dptune`."""
