"""Check a model once a process, however many tests train one like it.

The self-check of a tiny model takes longer than the steps of most trainings.
"""

import sys
from dataclasses import fields
from types import ModuleType

CHECKS = "dptune.dpsgd.prechecks"
OF_CHECKS = ("check_model", "check_private", "selfcheck", "doctor")
PLAIN = bool | int | float | str
_passed: dict[str, tuple] = {}


def use_passed_checks(monkeypatch, module: ModuleType) -> None:
    """Let a model pass that has passed, but in files that name the check itself."""
    checks = sys.modules.get(CHECKS)
    if checks and not any(hasattr(module, name) for name in OF_CHECKS):
        monkeypatch.setattr(checks, "check_model", _Once(checks.check_model))


class _Once:
    """`check_model`, but for what it has found sound; refusals are never kept."""

    def __init__(self, check):
        self._check = check

    def __call__(self, model, feed, *, parameter_groups):
        parts = _question(model, feed, parameter_groups)
        asked = repr((model, parts))
        if asked not in _passed:
            self._check(model, feed, parameter_groups=parameter_groups)
            _passed[asked] = (
                parts  # held, so that no other object gets an address in it
            )


def _question(model, feed, parameter_groups) -> tuple:
    """All that an answer may follow from, but for the values of weights.

    Of the data, the check sees no more than its bounds.
    """
    modules = [
        (
            name,
            type(module).forward,
            vars(module).get("forward"),
            {k: v for k, v in vars(module).items() if isinstance(v, PLAIN)},
            [*module._forward_hooks.values()],
        )
        for name, module in model.named_modules()
    ]
    weights = [
        (name, value.shape, value.dtype, value.requires_grad and parameter_groups(name))
        for name, value in model.named_parameters()
    ]
    options = [getattr(feed, f.name) for f in fields(feed) if f.name != "data"]
    bounds = feed.longest, feed.data.max_sequences_per_unit
    return str(getattr(model, "config", None)), modules, weights, options, bounds
