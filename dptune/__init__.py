"""Fine-tune language models on personal text with a privacy claim that can be checked.

The names below are what a user calls; each is loaded when it is first used, so that
importing dptune loads no torch. `__init__.pyi` beside this file declares them, once for
Python and for type checkers; docs/LIBRARY.md lists them. Everything else is private by
convention and may change. The library knows no orchestrator: the commands, pipelines
and steps that use it lie beside it.

>>> import dptune
>>> dptune.redact(["please write to grace.hill@example.org"], tier="low_entity")
['please write to <mask>']
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
