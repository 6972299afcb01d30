"""What a controller was granted stays used up, whatever is killed."""

import dp_accounting
import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.adaptive import (
    AskedBudget,
    Card,
    DeckTerms,
    OpenTerms,
    SigmaDeck,
)
from dptune.accounting.chain import Chain
from dptune.accounting.store.allowances import Cost
from dptune.errors import (
    ArtifactError,
    BudgetExceededError,
    ConfigError,
    PrivacyError,
)
from dptune.privacy import NeighboringRelation, Notion

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
DECK = DeckTerms(
    cards=tuple(
        (Card(sample_rate=0.1, noise_multiplier=noise), count)
        for noise, count in ((1.0, 2), (2.0, 3))
    )
)
OTHER = DeckTerms(cards=((Card(sample_rate=0.1, noise_multiplier=1.0), 300),))
TERMS = pytest.mark.parametrize("terms", [DECK, OTHER], ids=["mixed", "alike"])


def opened(terms, path):
    budget = AskedBudget(terms, path=path)
    budget.confirm_charge()
    return budget


def spend_all(budget, *, most=10_000):
    """Ask until nothing is granted any more."""
    granted = []
    while len(granted) < most:
        try:
            granted.append(budget.ask(1.0))
        except BudgetExceededError:
            return granted
    raise AssertionError


@TERMS
def test_ask_before_the_charge_is_refused(terms, tmp_path):
    budget = AskedBudget(terms, path=tmp_path / "grants.jsonl")
    with pytest.raises(PrivacyError, match="charged"):
        budget.ask(1.0)
    assert not (tmp_path / "grants.jsonl").exists()


@TERMS
def test_grants_of_all_starts_together_are_those_of_one(terms, tmp_path):
    whole = spend_all(opened(terms, None))
    path = tmp_path / "grants.jsonl"
    parts = []
    while True:
        budget = opened(terms, path)
        assert budget.grants == tuple(parts)
        try:
            parts += [budget.ask(1.0), budget.ask(1.0)]
        except BudgetExceededError:
            break
    assert list(AskedBudget(terms, path=path).grants) == whole


@TERMS
def test_twin_that_forgets_its_grants_overspends(terms, tmp_path):
    """The bug: a resumed run that opens a fresh budget."""
    whole = spend_all(opened(terms, None))
    starts = [opened(terms, tmp_path / name) for name in ("1", "2", "3")]
    twin = [noise for start in starts for noise in spend_all(start)]
    assert len(twin) > len(whole)
    assert drawn_epsilon(twin) > epsilon(terms.event, delta=1e-5, relation=ADD)
    assert drawn_epsilon(whole) <= epsilon(terms.event, delta=1e-5, relation=ADD)


def drawn_epsilon(grants):
    steps = [
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(noise))
        for noise in grants
    ]
    event = dp_accounting.ComposedDpEvent(steps)
    return epsilon(event, delta=1e-5, relation=ADD)


@TERMS
def test_grant_is_on_disk_before_it_is_returned(terms, tmp_path, monkeypatch):
    path = tmp_path / "grants.jsonl"
    budget = opened(terms, path)

    def full(*_):
        raise OSError("full")

    monkeypatch.setattr("dptune.accounting.chain._append", full)
    with pytest.raises(OSError, match="full"):
        budget.ask(1.0)
    assert budget.grants == ()


@TERMS
def test_charge_is_confirmed_once(terms, tmp_path):
    path = tmp_path / "grants.jsonl"
    assert not AskedBudget(terms, path=path).is_charged
    opened(terms, path)
    again = AskedBudget(terms, path=path)
    assert again.is_charged
    size = path.stat().st_size
    again.confirm_charge()
    assert path.stat().st_size == size


def test_grants_of_other_terms_are_refused(tmp_path):
    path = tmp_path / "grants.jsonl"
    opened(DECK, path).ask(1.0)
    with pytest.raises(ArtifactError, match="terms"):
        AskedBudget(OTHER, path=path)


@TERMS
def test_edited_grant_is_refused(terms, tmp_path):
    path = tmp_path / "grants.jsonl"
    opened(terms, path).ask(1.0)
    path.write_bytes(path.read_bytes().replace(b'"wish":1.0', b'"wish":2.0'))
    with pytest.raises(ArtifactError, match="line 2"):
        AskedBudget(terms, path=path)


def test_terms_that_cannot_work_are_refused():
    with pytest.raises(ConfigError):
        DeckTerms(cards=((Card(sample_rate=2.0, noise_multiplier=1.0), 1),))


@TERMS
def test_store_can_keep_the_event(terms):
    cost = Cost.of({Notion.RECORD: terms.event})
    again = Cost.from_json(cost.to_json())
    ours = epsilon(again.event(Notion.RECORD), delta=1e-5, relation=ADD)
    assert ours == epsilon(terms.event, delta=1e-5, relation=ADD)


RATES = DeckTerms(
    cards=tuple(
        (Card(sample_rate=rate, noise_multiplier=noise), 2)
        for rate, noise in ((0.1, 1.0), (1.0, 3.0))
    )
)


def test_grants_of_several_rates_are_asked_again_each_at_its_own(tmp_path):
    path = tmp_path / "grants.jsonl"
    before = opened(RATES, path)
    granted = [before.ask(1.0, sample_rate=rate) for rate in (1.0, 0.1, 1.0)]
    after = AskedBudget(RATES, path=path)
    assert granted == [3.0, 1.0, 3.0] == list(after.grants)
    assert after.is_charged
    assert after.ask(1.0, sample_rate=0.1) == 1.0
    with pytest.raises(BudgetExceededError):
        after.ask(1.0, sample_rate=1.0)


def test_grant_that_the_terms_would_not_give_is_refused_by_its_file(tmp_path):
    path = tmp_path / "grants.jsonl"
    opened(DECK, path)
    Chain(path).append({"wish": 1.0, "rate": None, "granted": 2.0})
    with pytest.raises(ArtifactError, match=r"grants\.jsonl must hold grants"):
        AskedBudget(DECK, path=path)


def test_without_terms_every_wish_is_granted_and_nothing_is_claimed():
    terms = OpenTerms(sample_rate=0.5)
    assert terms.event == terms.open().event == dp_accounting.NonPrivateDpEvent()
    assert terms.sample_rates == {0.5}
    assert AskedBudget(terms, path=None).event == terms.event
    assert opened(terms, None).ask(0.01) == 0.01
    assert RATES.sample_rates == {0.1, 1.0}


def test_deck_holds_rates_from_nobody_to_everybody():
    for rate in (0.0, 1.0):
        card = Card(sample_rate=rate, noise_multiplier=1.0)
        assert SigmaDeck({card: 0}).left == {}
        assert SigmaDeck({card: 1}).left == {card: 1}
    for rate in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="sample_rate"):
            SigmaDeck({Card(sample_rate=rate, noise_multiplier=1.0): 1})
