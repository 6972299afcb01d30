"""Every kind of claim, word for word: `claims.json` is what a card would quote.

Figures to seven digits; versions of programs are left out. To write the file anew, run
`python tests/golden/test_claims.py`, and read what changed as its reader would.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import pytest
from pydantic import ValidationError

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate, issue_certificate
from dptune.accounting.ledger import LedgerEntry, NotionEvent, PrivacyLedger
from dptune.errors import DptuneError
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit

FILE = Path(__file__).with_name("claims.json")
ADD, REPLACE = NeighboringRelation
GAUSSIAN, RAW = dpa.GaussianDpEvent(2.0), dpa.NonPrivateDpEvent()
SAMPLED = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, GAUSSIAN), 20)
RECALL = Assumption.DETECTOR_RECALL_IS_ONE


def certificate(event=SAMPLED, notion=Notion.RECORD, relation=ADD, **changes):
    values = {"privacy_unit": PrivacyUnit.RECORD, "delta": 1e-5} | changes
    return issue_certificate(event, notion=notion, relation=relation, **values)


def entry(**changes):
    values = {
        "stage": "one",
        "recipe": "jft",
        "data_fingerprint": "f",
        "privacy_unit": "record",
        "view": "original",
        "dp_event": SAMPLED,
        "num_steps": 20,
    }
    return LedgerEntry(**(values | changes))


def kinds():
    """Certificates of single events."""
    many = dpa.ComposedDpEvent([dpa.GaussianDpEvent(3 + i / 9) for i in range(17)])
    selective, local = (Notion.SELECTIVE, REPLACE), (Notion.LOCAL, REPLACE)
    conditional = certificate(SAMPLED, *selective, assumptions=(RECALL,))
    return {
        "record, added or removed": certificate(),
        "record, replaced": certificate(relation=REPLACE),
        "user, replaced": certificate(relation=REPLACE, privacy_unit=PrivacyUnit.USER),
        "document": certificate(privacy_unit=PrivacyUnit.DOCUMENT),
        "selective": certificate(SAMPLED, *selective),
        "selective, conditional": conditional,
        "selective, rate": conditional.quoting(0.01, 0.025, "a review"),
        "selective, half a rate": conditional.quoting(0.01, None, "a review"),
        "selective, other half": conditional.quoting(None, 0.025, "a review"),
        "certified has no rate": certificate().quoting(0.01, 0.025, "a review"),
        "conditional on others": certificate(
            assumptions=(Assumption.NUM_UNITS_IS_PUBLIC,)
        ).quoting(0.01, 0.025, "a review"),
        "local": certificate(GAUSSIAN, *local, privacy_unit=PrivacyUnit.USER),
        "untouched": certificate(dpa.NoOpDpEvent()),
        "untouched, conditional": certificate(
            dpa.NoOpDpEvent(), *selective, assumptions=(RECALL,)
        ),
        "raw": certificate(RAW),
        "raw, selective": certificate(RAW, *selective),
        "seeded": certificate(assumptions=(Assumption.FIXED_SEED_RANDOMNESS,)),
        "seeded, tiers": certificate(
            assumptions=(Assumption.FIXED_SEED_RANDOMNESS,), tiers={"high": GAUSSIAN}
        ),
        "tiers": certificate(tiers={"high": GAUSSIAN, "low": RAW}),
        "nominal": certificate(nominal_epsilon=1.5, nominal_reference="Table 2"),
        "beyond floats": certificate(dpa.GaussianDpEvent(0.025)),
        "odds of a large epsilon": certificate(dpa.GaussianDpEvent(0.05)),
        "many kinds": certificate(many),
        "long grid": certificate(
            dpa.SelfComposedDpEvent(
                dpa.PoissonSampledDpEvent(1e-5, dpa.GaussianDpEvent(0.5)), 100
            )
        ),
        "truncated": certificate(
            dpa.TruncatedSubsampledGaussianDpEvent(50, 0.2, 12, 2.0)
        ),
        "rounding": certificate(delta=1e-12),
    }


def ledgers():
    """Certificates of histories."""
    tiers = (
        NotionEvent(notion=Notion.SELECTIVE, dp_event=GAUSSIAN),
        NotionEvent(notion=Notion.SELECTIVE, dp_event=SAMPLED, tier="high"),
        NotionEvent(notion=Notion.LOCAL, dp_event=GAUSSIAN, tier="texts"),
    )
    view = {
        "view": "redacted",
        "dp_event": RAW,
        "assumptions": (
            Assumption.PUBLIC_HYPERPARAMETERS,
            Assumption.SCREENED_BY_HAND,
            Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS,
            Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY,
        ),
    }
    public = entry(view="public", dp_event=None, privacy_unit="user")
    nominal = {"nominal_epsilon": 1.25, "nominal_reference": "Table 1"}
    histories = {
        "nothing": (),
        "public": (public,),
        "two stages": (entry(**view), entry(stage="two", **nominal)),
        "blocks": (
            entry(**nominal),
            entry(**nominal),
            entry(stage="two", nominal_epsilon=2.0, nominal_reference="Table 1"),
            entry(stage="three", nominal_epsilon=0.5),
            public,
        ),
        "tiers": (entry(notion_events=tiers),),
        "seeded": (entry(fixed_seed=True), entry(stage="two", **view)),
        "seeded without noise": (entry(fixed_seed=True, **view),),
        "redacted, unfounded": (entry(**(view | {"assumptions": (RECALL,)})),),
    }
    found = {}
    for name, entries in histories.items():
        whole = PrivacyLedger()
        for one in entries:
            whole = whole.append(one)
        assert whole == PrivacyLedger(entries=entries)
        found[name] = whole.certificates(1e-5)
    return found


def refused():
    """What no entry, ledger or certificate may be, and why."""
    event = certificate().model_dump()
    banded = {"num_bands": 2, "sample_rate": 0.05}
    other = entry(privacy_unit="user")
    makes = {
        "no event": lambda: entry(dp_event=None),
        "event of public data": lambda: entry(view="public"),
        "too few mechanisms": lambda: entry(num_steps=21),
        "enough for two bands": lambda: entry(num_steps=40, **banded),
        "too few for two bands": lambda: entry(num_steps=41, **banded),
        "bands without a rate": lambda: entry(num_bands=2),
        "bands of another event": lambda: entry(
            **banded, dp_event=GAUSSIAN, num_steps=1
        ),
        "another rate": lambda: entry(sample_rate=0.2),
        "another noise": lambda: entry(noise_multiplier=1.0),
        "own rate and noise": lambda: entry(sample_rate=0.1, noise_multiplier=2.0),
        "everybody": lambda: entry(dp_event=GAUSSIAN, num_steps=1, sample_rate=1.0),
        "not everybody": lambda: entry(dp_event=GAUSSIAN, num_steps=1, sample_rate=0.5),
        "unknown event": lambda: entry(dp_event=dpa.LaplaceDpEvent(1.0)),
        "no event at all": lambda: entry(dp_event={"version": 1}),
        "two units": lambda: PrivacyLedger(entries=(entry(), other)),
        "another unit": lambda: PrivacyLedger().append(entry()).append(other),
        "infinite and certified": lambda: Certificate(**event | {"epsilon": math.inf}),
        "finite and none": lambda: Certificate(**event | {"status": "none"}),
        "local, added": lambda: Certificate(**event | {"notion": "local"}),
        "selective, added": lambda: certificate(SAMPLED, Notion.SELECTIVE, ADD),
    }
    return {name: reason(make) for name, make in makes.items()}


def reason(make) -> str:
    """Why something is refused; that it is not, where it is not."""
    try:
        make()
    except ValidationError as error:
        return "; ".join(one["msg"] for one in error.errors())
    except DptuneError as error:
        return str(error)
    return "is taken"


def written() -> dict[str, Any]:
    """Lay all claims out as plain data."""
    found = {
        "kinds": {name: laid_out(one) for name, one in kinds().items()},
        "ledgers": {
            name: [laid_out(one) for one in ones] for name, ones in ledgers().items()
        },
        "refused": refused(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def laid_out(one: Certificate) -> dict[str, Any]:
    """A certificate without versions of programs, and its label."""
    values = one.model_dump(mode="json", exclude={"schema_version"})
    values["accountant"] = re.sub(
        r"(accounting|dptune) [\d.]+\w*", r"\1", one.accountant
    )
    for tier in values["tiers"]:
        tier.pop("schema_version")
    return values | {"label": one.label}


def flat(value, path=()):
    """Paths and leaves."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            yield from flat(child, (*path, key))
    else:
        yield path, value


def test_nothing_is_learnt_for_certain_at_delta_zero_alone():
    """One step of noise multiplier 1 has epsilon 0 at delta .5, and tells something."""
    found = certificate(dpa.GaussianDpEvent(1.0), delta=0.5)
    assert (found.epsilon, found.delta) == (0.0, 0.5)
    assert found.explanation.endswith(", except with probability 0.5.")
    nothing = certificate(dpa.NoOpDpEvent(), delta=0.5)
    assert (nothing.epsilon, nothing.delta) == (0.0, 0.0)
    assert "except" not in nothing.explanation


def test_claims_are_what_they_were():
    golden = dict(flat(json.loads(FILE.read_text(encoding="utf-8"))))
    found = dict(flat(written()))
    differ = {
        path: (value, found.get(path))
        for path, value in golden.items()
        if not same(value, found.get(path), 1e-5 if "rounding" in path else 1e-7)
    }
    assert differ == {}


def same(value, found, rel) -> bool:
    """Equal up to the rounding of processors, which a delta of 1e-12 feels."""
    if isinstance(value, float) and not isinstance(found, bool):
        return found == pytest.approx(value, rel=rel, nan_ok=True)
    return type(value) is type(found) and value == found


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n", "utf-8")
