"""The command line behind `run.py`."""
