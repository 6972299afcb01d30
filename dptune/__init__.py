"""Fine-tune language models on personal text with a privacy claim that can be checked.

The library knows no orchestrator: `pipelines/`, `steps/` and `materializers/` beside it
are the ZenML application.
"""

__version__ = "0.1.0"
