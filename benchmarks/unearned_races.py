"""Ways by commands at once; see `unearned.py`."""

import json
import multiprocessing
import os
from pathlib import Path

from unearned import COMMANDS, REFUSED, Answer, Play, way
from unearned_world import CLEAN, LEAKY, MODEL, SECOND, World

from steps import _champions, _promoting
from steps._deciding import ENVELOPE


def _at_once(world: World, *plays: Play) -> list[int | None]:
    """Play several commands in processes of their own, at once."""
    context = multiprocessing.get_context("spawn")
    pool = [context.Process(target=_alone, args=(world.home.parent, p)) for p in plays]
    for process in pool:
        process.start()
    for process in pool:
        process.join(300)
    return [process.exitcode for process in pool]


def _alone(home: Path, play: Play) -> None:
    world = World(home, output=f"output-{os.getpid()}")
    world.open()
    code, _ = play(world)
    os._exit(code)


def gate_strict(world: World) -> Answer:
    """Decide under a strict policy."""
    strict = world.outside / "strict.yaml"
    return world.gate(policy=strict)


def gate_own(world: World) -> Answer:
    """Decide under the runs' policy."""
    return world.gate()


def promote_clean(world: World) -> Answer:
    """Promote the clean version."""
    return world.promote(CLEAN)


def promote_leaky(world: World) -> Answer:
    """Promote the leaking version."""
    return world.promote(LEAKY)


def promote_second(world: World) -> Answer:
    """Promote the second clean version."""
    return world.promote(SECOND)


def roll_back(world: World) -> Answer:
    """Go back to the first champion."""
    return world.rollback("--to", CLEAN)


def train_again(world: World) -> Answer:
    """Register the first version once more, with new attacks."""
    return world.train("attack.num_bootstrap=101")


def _sound(world: World) -> tuple[int, str]:
    """Say whether the champion is what the trail says, by a decision that lets it."""
    problem = _champions.misplaced_champion(MODEL)
    champion = _champions.champion(MODEL) or ""
    wrong, _ = _promoting.look_at_champion(MODEL, champion, weights=True)
    decision = json.loads((world.beside(champion) / ENVELOPE).read_text())
    fine = not problem and not wrong and bool(decision) and champion != LEAKY
    said = problem or wrong or f"champion {champion} is what was decided and promoted"
    return (REFUSED if fine else 0), f"refused {said}"


def _race(*plays: Play) -> Play:
    def play(world: World) -> Answer:
        strict = world.policy_file("strict.yaml", name="strict", max_epsilon=0.001)
        codes = _at_once(world, *plays)
        code, said = _sound(world)
        fine = set(codes) <= {0, 1, 2}
        return (code if fine else 0), f"{said} (exit codes {codes}, {strict.name})"

    return play


RACES: dict[str, tuple[Play, ...]] = {
    "two gates at once, of a lax and of a strict policy": (gate_own, gate_strict),
    "a gate beside a registration": (gate_own, train_again),
    "a promotion beside a strict gate": (promote_clean, gate_strict),
    "a rollback beside a promotion": (roll_back, promote_second),
    "two promotions at once, one of them the leaker's": (
        promote_clean,
        promote_leaky,
        promote_second,
    ),
}


def _enlist_races() -> None:
    for what, plays in RACES.items():
        says = "is what was decided and promoted"
        way("concurrency", what, rights=COMMANDS, says=says)(_race(*plays))


_enlist_races()
