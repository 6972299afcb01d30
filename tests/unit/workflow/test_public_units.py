"""Neighbors differ in noise alone: nothing public follows from the number of units."""

import json
import math
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from pydantic import ValidationError

from dptune.accounting.assumptions import Assumption
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.comparing import load_comparison
from dptune.config import DataSettings
from dptune.configfile import load_train_config, read_yaml, validate
from dptune.data.public_units import ReleasedUnits, round_units
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.randomness import GaussianStream
from dptune.errors import ConfigError
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, UnitsFrom
from dptune.recipes import Recipe
from dptune.reports.pages.training import PRIVATE_HEADING, stage_page
from dptune.workflow import planned_units
from dptune.workflow.charging import stage_entry
from dptune.workflow.dossier import Dossier, RunResults
from dptune.workflow.planned_units import (
    PlannedUnits,
    check_bound,
    ledger_of,
    release_units,
    units_for,
)
from steps._registering import dashboard_metadata, version_parameters
from tests.unit.reports import samples

from .conftest import stage

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
RECIPES = sorted((CONFIGS / "recipes").glob("*"))
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
PUBLIC = {
    "declared": 2000,
    "released": ReleasedUnits(number=2000, noise_multiplier=20),
}
RELATIVE = {
    "expected_batch_size": None,
    "relative_batch": {"share": 0.1, "at_most": 64},
}


@pytest.fixture
def settings(config):
    """Data settings and canaries of the tiny configuration."""

    def make(public):
        data = config.data.model_copy(update={"public_units": public})
        return data, config.canaries

    return make


@pytest.fixture
def config():
    return load_train_config(
        CONFIGS.parent / "tests/configs/tiny.yaml", configs=CONFIGS
    )


def given_noise(recipe):
    """The recipe with all noise given: what is compared does not need calibration."""

    def fixed(one):
        if one.noise is None:
            return one
        noise = one.noise.model_copy(update={"noise_multiplier": 1.0})
        if noise.correlation != "independent":
            noise = noise.model_copy(
                update={"correlation": "independent", "num_bands": None}
            )
        return one.model_copy(update={"noise": noise})

    return recipe.model_copy(update={"stages": tuple(map(fixed, recipe.stages))})


def everything(recipe, report, units, *, delta=1e-4):
    """What follows from a corpus of so many units: plan, entries, certificates."""
    local = any(one.local is not None for one in recipe.stages)
    plan = plan_run(
        recipe,
        num_units=units.number,
        units_from=units.origin,
        units_noise_multiplier=units.noise_multiplier,
        notion=Notion.LOCAL if local else Notion.SELECTIVE,
        relation=REPLACE,
        target_epsilon=100.0 if local else None,
        target_delta=delta,
    )
    entries = [
        *ledger_of(plan, report).entries,
        *(
            stage_entry(
                report,
                one,
                recipe=recipe.name,
                first_step=0,
                num_steps=one.num_steps,
                fixed_seed=False,
            )
            for one in plan.stages
        ),
    ]
    return plan, [e.model_copy(update={"data_fingerprint": ""}) for e in entries]


def with_units(report, count):
    """The report of the same corpus with other units, all of them private figures."""
    update = {
        "num_units": report.num_units | {"train": count},
        "num_records": report.num_records | {"train": count},
        "num_read": count + 50,
        "num_characters": 1000 * count,
        "fingerprint": f"{count:064d}",
        "redaction": "mask",
    }
    return report.model_copy(update=update)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *((path, "declared") for path in RECIPES),
        *((path, "released") for path in RECIPES if path.stem in {"dp_sgd", "jft"}),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_plan_and_entries_of_neighbors_are_equal(path, kind, settings, corpus):
    recipe = given_noise(validate(Recipe, read_yaml(path)))
    data, canaries = settings(PUBLIC[kind])
    made = set()
    for count in (1499, 1500, 1501):
        report = with_units(corpus.report, count)
        plan, entries = everything(recipe, report, units_for(data, canaries, report))
        written = [one.model_dump_json() for one in (plan, *entries)]
        made.add(tuple(written))
    assert len(made) == 1


def plan_at(num_units, *, public, **changes):
    """A stage of given noise, planned on so many units."""
    recipe = Recipe.model_validate(
        {"name": "r", "title": "R", "stages": [stage(**changes)]}
    )
    units = PlannedUnits(number=num_units)
    if public:
        units = PlannedUnits(number=100, origin=UnitsFrom.DECLARED)
    return plan_run(
        recipe,
        num_units=units.number,
        units_from=units.origin,
        notion=Notion.RECORD,
        relation=ADD,
        target_epsilon=None,
        target_delta=1e-3,
    ).stages[0]


def guess(released: torch.Tensor, first: GradientPlan, second: GradientPlan) -> int:
    """Which of two plans a released gradient of nobody comes from, by its scale."""
    stddevs = [p.noise_stddev() / p.expected_batch_size for p in (first, second)]
    scores = [
        -0.5 * float((released / s).square().sum()) - len(released) * math.log(s)
        for s in stddevs
    ]
    return int(scores[1] > scores[0])


def attack_on_the_divisor(first, second, *, trials=40):
    """Share of releases whose data set is told by the scale of the noise alone."""
    plans, won = [p.with_noise(p.noise_multiplier) for p in (first, second)], 0
    for trial in range(trials):
        truth = trial % 2
        sums = {"w": torch.zeros(2000)}
        stream = GaussianStream(
            np.random.SeedSequence(trial), device=torch.device("cpu")
        )
        noise = plans[truth].noise(stream, sums=sums)
        plans[truth].release(sums, step=0, noise=noise)
        won += guess(sums["w"], *plans) == truth
    return won / trials


def test_scale_of_released_noise_tells_neighbors_apart_without_a_public_number():
    """Opacus issues 571 and 819: 94 units have batches of 9, 95 of 10."""
    assert (
        attack_on_the_divisor(*(plan_at(n, public=False, **RELATIVE) for n in (94, 95)))
        == 1.0
    )


def test_scale_of_released_noise_tells_nothing_with_a_public_number():
    won = attack_on_the_divisor(
        *(plan_at(n, public=True, **RELATIVE) for n in (94, 95))
    )
    assert won == 0.5  # equal laws: always the same guess


def differs(path, corpus, settings, *, neighbors, **changes):
    """Whether a figure of the plan differs between neighbors."""
    data, canaries = settings(200)
    found = set()
    for count in neighbors:
        report = with_units(corpus.report, count)
        units = units_for(data, canaries, report)
        recipe = Recipe.model_validate(
            {"name": "r", "title": "R", "stages": [stage(**changes)]}
        )
        made = everything(recipe, report, units)[0].stages[0]
        found.add(getattr(made, path))
    return len(found) > 1


FIGURES = {
    "sample_rate": {},
    "num_steps": {"epochs": 8.0},
    "expected_batch_size": RELATIVE,
}


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_that_follow_from_the_exact_number_are_caught(
    figure, corpus, settings, monkeypatch
):
    neighbors = range(145, 156)
    changes = FIGURES[figure]
    assert not differs(figure, corpus, settings, neighbors=neighbors, **changes)

    def from_the_data(data, canaries, report):
        return PlannedUnits(number=report.num_units["train"] + canaries.num_new_units)

    monkeypatch.setitem(globals(), "units_for", from_the_data)
    assert differs(figure, corpus, settings, neighbors=neighbors, **changes)


def delta_outcomes(units, corpus, *, delta):
    """Whether a delta is accepted, on neighbors."""
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [stage()]})
    found = set()
    for count in (199, 200, 201):
        report = with_units(corpus.report, count)
        try:
            everything(recipe, report, units(report), delta=delta)
            found.add(True)
        except ConfigError:
            found.add(False)
    return found


def test_delta_is_held_against_the_exact_number_in_a_twin_and_is_caught(corpus):
    def declared(report):
        return PlannedUnits(number=200, origin=UnitsFrom.DECLARED)

    def exact(report):
        return PlannedUnits(number=report.num_units["train"])

    assert delta_outcomes(declared, corpus, delta=1 / 200.5) == {True}
    assert delta_outcomes(declared, corpus, delta=1 / 199.5) == {False}
    assert delta_outcomes(exact, corpus, delta=1 / 199.5) == {True, False}


def claims(units, corpus, **changes):
    recipe = Recipe.model_validate(
        {"name": "r", "title": "R", "stages": [stage(**changes)]}
    )
    _, entries = everything(recipe, with_units(corpus.report, 150), units)
    ledger = PrivacyLedger(entries=tuple(entries))
    return {(c.notion, c.relation): c for c in ledger.certificates(1e-4)}


def test_claim_about_presence_is_conditional_on_the_exact_number_and_others_are_not(
    corpus,
):
    made = claims(PlannedUnits(number=150), corpus)
    status = {kind: c.status for kind, c in made.items()}
    assert status == {
        (Notion.RECORD, ADD): "conditional",
        (Notion.RECORD, REPLACE): "certified",
        (Notion.SELECTIVE, REPLACE): "certified",
    }
    assert Assumption.NUM_UNITS_IS_PUBLIC in made[Notion.RECORD, ADD].assumptions


@pytest.mark.parametrize("origin", [UnitsFrom.DECLARED, UnitsFrom.RELEASED])
def test_claim_with_a_public_number_is_certified_and_says_where_it_is_from(
    origin, corpus
):
    noise = 20.0 if origin is UnitsFrom.RELEASED else None
    made = claims(
        PlannedUnits(number=200, origin=origin, noise_multiplier=noise), corpus
    )
    assert {c.status for c in made.values()} == {"certified"}
    named = made[Notion.RECORD, ADD].assumptions
    assert Assumption.NUM_UNITS_IS_PUBLIC not in named
    declared = origin is UnitsFrom.DECLARED
    assert (Assumption.NUM_UNITS_WAS_DECLARED in named) is declared
    assert (Assumption.NUM_UNITS_WAS_RELEASED in named) is not declared


def test_release_of_the_number_is_in_the_certificate_and_in_the_target(corpus):
    def epsilon(noise):
        units = PlannedUnits(
            number=200, origin=UnitsFrom.RELEASED, noise_multiplier=noise
        )
        return claims(units, corpus)[Notion.RECORD, ADD].epsilon

    declared = PlannedUnits(number=200, origin=UnitsFrom.DECLARED)
    free = claims(declared, corpus)[Notion.RECORD, ADD].epsilon
    assert epsilon(2.0) > epsilon(20.0) > free
    recipe = Recipe.model_validate(
        {"name": "r", "title": "R", "stages": [stage(noise={})]}
    )
    plan = plan_run(
        recipe,
        num_units=200,
        units_from=UnitsFrom.RELEASED,
        units_noise_multiplier=2.0,
        notion=Notion.RECORD,
        relation=ADD,
        target_epsilon=3.0,
        target_delta=1e-4,
    )
    _, entries = (
        plan,
        [
            *ledger_of(plan, corpus.report).entries,
            stage_entry(
                corpus.report,
                plan.stages[0],
                recipe="r",
                first_step=0,
                num_steps=plan.stages[0].num_steps,
                fixed_seed=False,
            ),
        ],
    )
    claim = PrivacyLedger(entries=tuple(entries)).certificate(Notion.RECORD, delta=1e-4)
    assert 2.9 < claim.epsilon <= 3.0


def test_more_units_than_a_truncated_batch_was_accounted_for_are_refused(
    config, corpus
):
    cut = stage(sampling={"kind": "truncated_poisson", "max_batch_size": 20})
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [cut]})
    changed = config.model_copy(update={"recipe": recipe})
    new = config.canaries.num_new_units
    units = PlannedUnits(number=200 + new, origin=UnitsFrom.DECLARED)
    check_bound(changed, units, with_units(corpus.report, 200))
    with pytest.raises(ConfigError, match="upper bound"):
        check_bound(changed, units, with_units(corpus.report, 201))
    check_bound(config, units, with_units(corpus.report, 201))


@pytest.mark.parametrize(("actual", "told"), [(100, 0), (399, 0), (99, 1), (401, 1)])
def test_operator_is_told_of_a_number_that_is_far_off_and_nothing_is_refused(
    actual, told, config, corpus
):
    data = config.data.model_copy(update={"public_units": 200})
    changed = config.model_copy(update={"data": data})
    assert (
        len(planned_units.far_off(changed, with_units(corpus.report, actual))) == told
    )
    assert not planned_units.far_off(config, with_units(corpus.report, actual))


def leaving(corpus, *, count, noise=None):
    """What leaves the trust boundary, of a corpus of so many units."""
    report = with_units(corpus.report, count)
    origin = UnitsFrom.RELEASED if noise else UnitsFrom.DECLARED
    units = PlannedUnits(number=200, origin=origin, noise_multiplier=noise)
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [stage()]})
    plan, _ = everything(recipe, report, units)
    entry = stage_entry(
        report,
        plan.stages[0],
        recipe="r",
        first_step=0,
        num_steps=plan.stages[0].num_steps,
        fixed_seed=False,
    )
    results = RunResults(
        plan=plan,
        ledger=ledger_of(plan, report).append(entry),
        corpus=report,
        detection=samples.detection_report().model_copy(
            update={"fingerprint": report.fingerprint, "num_records": count}
        ),
        redaction=samples.redaction_report(),
        exposure=samples.exposure_report(),
        membership=samples.membership_report(),
        utility=samples.utility_report(),
    )
    made = Dossier.of(
        results, model_digest=samples.MODEL, base_model="gpt2", recipe=recipe
    )
    version = samples.registered_version()
    return {
        "card": made.card(version, samples.gate_decision()).model_dump_json(),
        "certificates": [c.model_dump_json() for c in made.certificates],
        "metadata": dashboard_metadata(made, version),
        "parameters": version_parameters(made),
    }


def test_what_leaves_the_trust_boundary_is_equal_for_neighbors(corpus, monkeypatch):
    first, second = (leaving(corpus, count=count) for count in (150, 151))
    assert first == second
    honest = Dossier.card

    def with_digest(self, version, decision):
        update = {"data_fingerprint": self.corpus.fingerprint}
        return honest(self, version, decision).model_copy(update=update)

    monkeypatch.setattr(Dossier, "card", with_digest)  # as it was
    assert leaving(corpus, count=150) != leaving(corpus, count=151)


def test_page_of_a_stage_shows_counts_of_private_batches_as_private_alone():
    page = stage_page(samples.stage_report())
    public = [s for s in page.sections if s.title != PRIVATE_HEADING]
    private = [s for s in page.sections if s.title == PRIVATE_HEADING]
    hidden = ("Tokens", "Speed", "Time", "Privacy units")
    assert not [word for word in hidden if word in str(public)]
    assert "Tokens" in str(private)


def test_release_beside_the_stages_does_not_change_what_a_card_says_of_sampling(corpus):
    card = json.loads(leaving(corpus, count=150, noise=20.0)["card"])
    assert card["sampling_assumed"] == card["sampling_actual"]
    assert card["sampling_assumed"].startswith("Poisson")


def released(config, corpus, folder, url, *, draws, noise_multiplier=20.0):
    class Draws(random.Random):
        """Remembers how often it was asked, and with which stddev."""

        def gauss(self, mu=0.0, sigma=1.0):
            draws.append(sigma)
            return super().gauss(mu, sigma)

    return release_units(
        config,
        corpus,
        noise_multiplier=noise_multiplier,
        folder=folder,
        url=url,
        key=b"k" * 32,
        generator=Draws(5),
    )


def test_units_are_counted_once_charged_once_and_rounded(
    config, corpus, tmp_path, sqlite_budget
):
    url, draws = sqlite_budget(), []
    found = [released(config, corpus, tmp_path, url, draws=draws) for _ in range(3)]
    assert len(set(map(str, found))) == 1
    assert found[0].number == round_units(found[0].number)
    assert draws == [20.0]
    store = BudgetStore.open(url)
    (held,) = history(store)
    (entry,) = LedgerJournal(next(tmp_path.glob("units-*/ledger.jsonl"))).read().entries
    assert held.spent.count(Notion.RECORD) == entry.num_steps == 1
    assert entry.dp_event == GaussianDpEvent(20.0)
    released(config, corpus, tmp_path, url, draws=draws, noise_multiplier=5.0)
    assert draws == [20.0, 5.0]  # another release, and paid for
    assert len(history(store)) == 2
    store.engine.dispose()


def test_count_of_two_commands_at_once_is_drawn_and_paid_once(
    config, corpus, tmp_path, sqlite_budget
):
    """Both drew and paid, and each told another number."""
    url, found, draws = sqlite_budget(), [], []

    def ask():
        found.append(released(config, corpus, tmp_path, url, draws=draws))

    other = threading.Thread(target=ask)

    class Interrupted(random.Random):
        def gauss(self, mu=0.0, sigma=1.0):
            other.start()
            other.join(0.5)  # it waits, or it has drawn by now
            return super().gauss(mu, sigma)

    own = release_units(
        config,
        corpus,
        noise_multiplier=20.0,
        folder=tmp_path,
        url=url,
        key=b"k" * 32,
        generator=Interrupted(7),
    )
    other.join()
    assert (found, draws) == ([own], [])
    with BudgetStore.open(url) as store:
        (held,) = history(store)
    assert held.spent.count(Notion.RECORD) == 1


def test_count_is_charged_before_its_noise_is_drawn(
    config, corpus, tmp_path, sqlite_budget
):
    url = sqlite_budget()

    class Killed(random.Random):
        def gauss(self, mu=0.0, sigma=1.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release_units(
            config,
            corpus,
            noise_multiplier=20.0,
            folder=tmp_path,
            url=url,
            key=b"k" * 32,
            generator=Killed(),
        )
    released(config, corpus, tmp_path, url, draws=[])
    store = BudgetStore.open(url)
    (held,) = history(store)
    assert held.spent.count(Notion.RECORD) == 2
    store.engine.dispose()


@pytest.mark.parametrize("number", [992, 1001, 12_345, 0, -5, 10.5])
def test_number_that_is_finer_than_two_digits_is_refused(number, config):
    values = config.data.model_dump() | {"public_units": number}
    with pytest.raises(ValidationError):
        DataSettings.model_validate(values)
    for rounded in (1, 99, 990, 1000, 12_000):
        values["public_units"] = rounded
        assert DataSettings.model_validate(values).public_units == rounded


def shipped():
    """Every configuration that is shipped, cells of comparisons included."""
    for path in sorted((CONFIGS / "train").glob("*.yaml")):
        yield load_train_config(path, configs=CONFIGS)
    for path in sorted((CONFIGS / "compare").glob("*.yaml")):
        for cell in load_comparison(path, configs=CONFIGS).cells:
            yield cell.config


def test_shipped_configurations_that_promise_presence_say_how_many_units_there_are():
    found = [
        (made.name, made.data.public_units is not None)
        for made in shipped()
        if (made.privacy.notion, made.privacy.relation) == (Notion.RECORD, ADD)
    ]
    assert len(found) > 10
    assert all(public for _, public in found), found
