"""What a user calls by name: one function for one thing, over the rooms below.

The names that are public stand in `dptune/__init__.pyi`, and on one page in
docs/LIBRARY.md. Where a module of this package is named there, import from `dptune`.
"""
