from .accounting.certificates import Certificate as Certificate
from .accounting.store.store import BudgetStore as BudgetStore
from .api.claims import account as account
from .api.claims import calibrate as calibrate
from .api.measuring import audit as audit
from .api.measuring import canaries as canaries
from .api.measuring import exposure as exposure
from .api.measuring import extraction as extraction
from .api.measuring import membership as membership
from .api.private import make_private as make_private
from .api.texts import detect as detect
from .api.texts import redact as redact
from .api.training import train as train
from .gates.decision import decide as decide

__version__: str
