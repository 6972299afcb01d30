"""Fine-tune language models on personal text with a privacy claim that can be checked.

The names below are what a user calls; each is loaded when it is first used, so that
importing dptune loads no torch. `__init__.pyi` beside this file declares them, once for
Python and for type checkers. The library knows no orchestrator: `pipelines/`, `steps/`
and `materializers/` beside it are the ZenML application.

>>> import dptune
>>> text = "please write to grace.hill@example.org"
>>> found = dptune.build_engine(tier="low_entity").detect([text])[0]
>>> dptune.redact_text(text, found, dptune.Operator.MASK).text
'please write to <mask>'
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
