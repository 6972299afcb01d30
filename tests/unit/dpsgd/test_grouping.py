import pytest

from dptune.dpsgd.parameters import Grouping, group_parameters

NAMES = (
    "wte.weight",
    "h.0.attn.c_attn.weight",
    "h.0.attn.c_attn.bias",
    "h.0.mlp.c_fc.lora_A.default.weight",
    "h.0.mlp.c_fc.lora_B.default.weight",
    "h.1.mlp.c_fc.lora_A.default.weight",
)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        (Grouping.FLAT, [0, 0, 0, 0, 0, 0]),
        (Grouping.PER_LAYER, [0, 1, 1, 2, 3, 4]),
        (Grouping.PER_LORA_PAIR, [0, 1, 1, 2, 2, 3]),
    ],
)
def test_groups_are_numbered_as_they_appear(grouping, expected):
    assert list(group_parameters(NAMES, grouping).values()) == expected
