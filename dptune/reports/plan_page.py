"""Blocks for a run plan: what a run will do and cost, before any training."""

from dptune.planning import RunPlan
from dptune.privacy import Mode, UnitsFrom
from dptune.reports.blocks import Facts, Page, Section, facts, table
from dptune.reports.formatting import count, epsilon, number, share, words
from dptune.stages import StagePlan

RELATION_WORDS = {
    "add_or_remove_one": "add or remove one privacy unit",
    "replace_one": "replace one privacy unit",
}
NOTION_WORDS = {
    "record": "record: the presence of one whole privacy unit",
    "selective": "selective: the sensitive tokens of one record",
    "local": "local: one sequence, against a server that is not trusted",
}


def plan_page(plan: RunPlan) -> Page:
    """Describe a run's stages and its predicted epsilon."""
    return Page(
        kicker="Run plan",
        title=f"Recipe {plan.recipe}",
        lede="Computed before any training, from public numbers only.",
        sections=(
            Section(title="What it will cost", blocks=(_cost(plan),)),
            Section(
                title="Stages",
                blocks=(
                    table(
                        (
                            "Stage",
                            "Text",
                            "Trains",
                            "Steps",
                            "Sample rate",
                            "Clip norm C",
                            "Noise / C",
                            "Bands",
                            "Expected batch",
                            "Largest batch",
                        ),
                        (_stage_row(stage) for stage in plan.stages),
                        numeric=range(3, 10),
                        caption="Steps of stages without noise carry no epsilon: what "
                        "they reveal depends on the text that they read. With several "
                        "bands the noise of a step takes back some of the last ones'.",
                    ),
                ),
            ),
        ),
    )


def relation_words(relation: str) -> str:
    """Say which two data sets are neighbors."""
    return RELATION_WORDS.get(relation, words(relation))


def notion_words(notion: str) -> str:
    """Say what a notion protects."""
    return NOTION_WORDS.get(notion, words(notion))


def _cost(plan: RunPlan) -> Facts:
    """Return target and predicted epsilon."""
    return facts(
        ("Notion", notion_words(plan.notion)),
        ("Neighbors", relation_words(plan.relation)),
        ("Target epsilon", number(plan.target_epsilon)),
        ("Delta", number(plan.target_delta)),
        (
            "Epsilon of all noisy stages",
            epsilon(plan.epsilon),
            "over stages and a release of counts; the ledger certifies what is spent",
        ),
        _nominal(plan),
        _released(plan),
        _public_units(plan),
    )


def _public_units(plan: RunPlan) -> tuple[str, str, str] | None:
    """Return the number of units that everything follows from, where it is public."""
    origins = {stage.units_from for stage in plan.stages}
    if UnitsFrom.EXACT in origins or not origins:
        return None
    released = plan.units_noise_multiplier
    origin = "declared" if released is None else f"noise {number(released)}"
    return ("Privacy units, public", count(plan.num_units), origin)


def _nominal(plan: RunPlan) -> tuple[str, str, str] | None:
    """Say what the papers would print, and what they leave out."""
    if plan.nominal_epsilon is None:
        return None
    note = "the papers' formulas, added over stages; no guarantee"
    released = plan.counts_nominal_epsilon
    if released is not None:
        note = (
            f"the papers' formulas, added over stages, and {epsilon(released)} for the "
            "release of counts, of which no paper speaks; no guarantee"
        )
    if plan.mode is Mode.PAPER:
        note += "; the target is for this figure"
    return ("Nominal epsilon", epsilon(plan.nominal_epsilon), note)


def _released(plan: RunPlan) -> tuple[str, str] | None:
    """Say with how much noise counts of entity types are released."""
    noise = plan.counts_noise_multiplier
    if noise is None:
        return None
    return ("Released counts of entity types, noise / C", number(noise))


def _noise(stage: StagePlan) -> str:
    """Say how much noise there is, and how it moves."""
    if not stage.noise_multiplier:
        return "none"
    values = [level * stage.noise_multiplier for level in stage.noise_levels]
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _stage_row(stage: StagePlan) -> tuple[str, ...]:
    """Return one stage's row."""
    settings = stage.settings
    cap = settings.sampling.max_batch_size
    clip = settings.clipping.max_grad_norm if settings.clipping else None
    return (
        words(settings.name),
        settings.view,
        "LoRA" if settings.trains == "lora" else settings.trains,
        count(stage.num_steps),
        share(stage.sample_rate),
        number(clip),
        _noise(stage),
        count(stage.num_bands) if stage.noise_multiplier else "none",
        count(stage.expected_batch_size),
        count(cap) if cap else "no limit",
    )
