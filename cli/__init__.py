"""The command line behind `dptune` and `run.py`."""
