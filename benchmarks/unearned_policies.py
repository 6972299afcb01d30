"""Ways by policies; see `unearned.py`."""

from collections.abc import Callable
from pathlib import Path

from unearned import POLICIES, Answer, Play, way
from unearned_world import LEAKY, World

# policies


STRICT_REASON = "must not be the name|must "


def _policy_text(world: World, **changes: object) -> str:
    return world.policy_file(**changes).read_text()


def _lax(world: World) -> Path:
    return world.policy_file("gate.yaml", name="default", max_epsilon=900.0)


def _given(make: Callable[[World], object]) -> Play:
    def play(world: World) -> Answer:
        return world.gate(policy=make(world))

    return play


def _file(world: World, body: bytes, name: str = "p.yaml") -> Path:
    file = world.outside / name
    file.write_bytes(body)
    return file


def _linked(world: World) -> Path:
    link = world.outside / "default.yaml"
    link.symlink_to(_lax(world))
    return link


def _bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join([*lines, "name: *a11"]).encode()


POLICY_WAYS: dict[str, tuple[Callable[[World], object], str]] = {
    "a lax file that calls itself `default`": (_lax, "must not be the name"),
    "a link named default.yaml to it": (_linked, "must not be the name"),
    "the same in UTF-16": (
        lambda w: _file(w, _policy_text(w, name="default").encode("utf-16")),
        "UTF-8",
    ),
    "the same behind a byte order mark": (
        lambda w: _file(w, b"\xef\xbb\xbf" + _policy_text(w, name="default").encode()),
        "must not be the name",
    ),
    "a key given twice": (
        lambda w: _file(w, _policy_text(w).encode() + b"\nmax_epsilon: 900.0\n"),
        "once",
    ),
    "a key given twice below an anchor": (
        lambda w: _file(
            w,
            b"x: &x {name: default, max_epsilon: 900.0}\n<<: *x\n"
            + _policy_text(w).replace("name: lax\n", "").encode(),
        ),
        "no such key|must not be the name",
    ),
    "merged from two anchors": (
        lambda w: _file(
            w,
            b"<<: [{max_epsilon: 900.0, name: default}, {max_epsilon: 8.0}]\n"
            b"notion: selective\nmax_delta: 1.0e-4\n",
        ),
        "must not be the name",
    ),
    "the name in capitals": (lambda w: w.policy_file(name="DEFAULT"), "name"),
    "a name that looks like it": (
        lambda w: w.policy_file(name="d\u0435fault"),
        "name",
    ),
    "a name with a line break behind it": (
        lambda w: w.policy_file(name="default\n"),
        "name",
    ),
    "an infinite epsilon": (
        lambda w: w.policy_file(max_epsilon=float("inf")),
        "finite",
    ),
    "an epsilon that is NaN": (
        lambda w: w.policy_file(max_epsilon=float("nan")),
        "finite|greater",
    ),
    "true for a threshold": (lambda w: w.policy_file(max_epsilon=True), "true or"),
    "empirical claims accepted": (
        lambda w: w.policy_file(accepted_statuses=["empirical"]),
        "certified, conditional",
    ),
    "no statuses accepted": (
        lambda w: w.policy_file(accepted_statuses=[]),
        "certified, conditional",
    ),
    "selective claims under add or remove": (
        lambda w: w.policy_file(relation="add_or_remove_one"),
        "replace_one",
    ),
    "code in a tag": (
        lambda w: _file(w, b"!!python/object/apply:os.system ['true']"),
        "YAML",
    ),
    "two documents in a file": (
        lambda w: _file(w, _policy_text(w).encode() + b"---\nname: x\n"),
        "YAML",
    ),
    "aliases that unfold to a billion": (lambda w: _file(w, _bomb()), "must"),
    "nothing": (lambda w: _file(w, b""), "mapping"),
    "a list": (lambda w: _file(w, b"- 1"), "mapping"),
    "bytes that are no text": (lambda w: _file(w, b"\xff\xfe\x00"), "UTF-8"),
    "a folder": (lambda w: w.outside.parent / "pristine.yaml", "YAML file"),
    "a key that does not exist": (
        lambda w: w.policy_file(max_epsilom=900.0),
        "no such key|not permitted",
    ),
}


def _enlist_policies() -> None:
    for what, (make, says) in POLICY_WAYS.items():
        named = f"policy by path: {what}"
        way("policies", named, rights=POLICIES, says=says)(_given(make))


_enlist_policies()


@way(
    "policies",
    "a lax policy of its own name, promoted and deployed",
    rights=POLICIES,
    says="must have passed under policy",
)
def _(world: World) -> Answer:
    lax = world.policy_file(max_epsilon=900.0, effect_size_bits=900.0)
    world.gate(policy=lax)
    return [world.promote(), world.verify()]


@way(
    "policies",
    "a lax policy whose version says 2 of the planned one",
    rights=POLICIES,
    says="have changed since",
)
def _(world: World) -> Answer:
    return world.gate(policy=world.policy_file(name="tiny", max_epsilon=900.0))


@way(
    "policies",
    "any policy for the leaker: all thresholds open",
    rights=POLICIES,
    says="budget|claim_status",
)
def _(world: World) -> Answer:
    opened = {"max_epsilon": 1e300, "max_delta": 0.9, "max_missing_rate": 1.0}
    opened |= {"require_canaries": False, "min_shadow_models": 0}
    opened |= {"accept_declared_missing_rate": True, "require_step_audit": False}
    opened |= {"effect_size_bits": 1e300, "single_canary_share": 1e-300}
    return world.gate(LEAKY, policy=world.policy_file(**opened))
