"""Ways by what a run is given: canaries, models, tokenizers; see `unearned.py`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file, save_file
from unearned import ARTIFACTS, CONFIGURATION, Answer, trained, way
from unearned_world import CLEAN, LEAKY, World, artifact

# canaries


CANARY_WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "none planted": (
        {"canaries": {"num_planted": 0}},
        "memorization: There is no|planted canaries",
    ),
    "no controls": ({"canaries": {"num_held_out": 0}}, "held-out"),
    "one planted": ({"canaries": {"num_planted": 1}}, "that was trained on"),
    "a space of ten candidates": (
        {"canaries": {"length": 1, "num_planted": 5, "num_held_out": 5}},
        "candidates",
    ),
    "secrets that somebody chose": (
        {
            "canaries": {
                "fixed": [f"{i:03d}" for i in range(20)],
            }
        },
        "drawn at random",
    ),
    "cut off by the longest sequence": (
        {
            "canaries": {"template": "USR: " + "long words " * 40 + "{secret}."},
            "model": {"max_sequences_per_unit": 1},
        },
        "must leave a canary",
    ),
    "all redacted": (
        {"recipe": "redacted", "canaries": {"setting": "not_missed"}},
        "None of 20 planted canaries was trained on",
    ),
}


def _enlist_canaries() -> None:
    for what, (changes, says) in CANARY_WAYS.items():
        way("canaries", f"canaries: {what}", rights=CONFIGURATION, says=says)(
            trained(**changes)
        )


_enlist_canaries()


def _attacked_again(world: World, *, recipe: str = "no_dp") -> tuple[int, str]:
    """Run what was trained again, with attacks that no cache answers."""
    return world.train(f"recipe={recipe}", "attack.num_bootstrap=101")


def _swap_canaries(_: World) -> None:
    """Lay another draw in the place of the canaries, planted where they were."""
    from dptune.attacks.canaries import CanarySet, draw_canaries  # noqa: PLC0415

    file = artifact("canaries", "report.json")
    known = CanarySet.model_validate_json(file.read_text())
    other = draw_canaries(known.spec, seed=7)
    file.write_text(other.model_dump_json())


def _swap_corpus(_: World) -> None:
    """Write the other canaries' texts over those that were trained on."""
    import pyarrow as pa  # noqa: PLC0415

    from dptune.attacks.canaries import CanarySet  # noqa: PLC0415
    from dptune.attacks.planting import canary_ids  # noqa: PLC0415

    canaries = CanarySet.model_validate_json(
        artifact("canaries", "report.json").read_text()
    )
    rows = canary_ids(canaries)
    for name in ("planted_corpus", "labelled_corpus"):
        file = artifact(name, "records.arrow")
        with pa.OSFile(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        texts = [
            canaries.spec.record(rows[i]) if i in rows else text
            for i, text in zip(
                table["id"].to_pylist(), table["text"].to_pylist(), strict=True
            )
        ]
        place = table.schema.get_field_index("text")
        kind = table.schema.field("text").type
        table = table.set_column(place, "text", pa.array(texts, kind))
        with (
            pa.OSFile(str(file), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)


def _between(world: World, tamper: Callable[[World], None]) -> tuple[int, str]:
    """Let somebody write to the artifact store between training and attacks."""
    from dptune.workflow import whitebox  # noqa: PLC0415

    audit = whitebox.kept_audit

    def audited(*given: object, **named: object) -> object:
        done = audit(*given, **named)
        tamper(world)
        return done

    whitebox.kept_audit = audited
    return _attacked_again(world)


@way(
    "canaries",
    "another run's canaries laid down between training and attacks",
    rights=ARTIFACTS,
    says="artifact",
)
def _(world: World) -> Answer:
    return _between(world, _swap_canaries)


@way(
    "canaries",
    "another draw's canaries, and their texts in the corpus that is attacked",
    rights=ARTIFACTS,
    says="artifact",
)
def _(world: World) -> Answer:
    def both(world: World) -> None:
        _swap_canaries(world)
        _swap_corpus(world)

    return _between(world, both)


@way(
    "canaries",
    "canaries moved to the test split of the corpus that is attacked",
    rights=ARTIFACTS,
    says="artifact",
)
def _(world: World) -> Answer:
    import pyarrow as pa  # noqa: PLC0415

    def move(_: World) -> None:
        file = artifact("labelled_corpus", "records.arrow")
        with pa.OSFile(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        splits = [
            "test" if "access code" in text else split
            for text, split in zip(
                table["text"].to_pylist(), table["split"].to_pylist(), strict=True
            )
        ]
        place = table.schema.get_field_index("split")
        kind = table.schema.field("split").type
        table = table.set_column(place, "split", pa.array(splits, kind))
        with (
            pa.OSFile(str(file), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)

    return _between(world, move)


@way(
    "models and tokenizers",
    "the clean model attacked in the place of the trained one",
    rights=ARTIFACTS,
    says="must be of the files",
)
def _(world: World) -> Answer:
    def swap(world: World) -> None:
        from zenml.client import Client  # noqa: PLC0415

        (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
        step = Client().get_pipeline_run(run.id).steps["prepare_model"]
        base = Path(step.outputs["base_model"][0].uri)
        for file in base.iterdir():
            (base / file.name).write_bytes(
                (
                    world.weights(CLEAN) if "safetensors" in file.name else file
                ).read_bytes()
            )

    return _between(world, swap)


# models and tokenizers


def _base(world: World) -> Path:
    """A plain folder of the base model and its tokenizer, below the data root."""
    plain = world.outside / "base"
    for part in ("model", "components/tokenizer"):
        shutil.copytree(world.files(CLEAN) / part, plain, dirs_exist_ok=True)
    return plain


def _from_path(world: World, folder: Path, **more: object) -> tuple[int, str]:
    source = {"kind": "path", "path": str(folder.relative_to(world.outside))}
    values = yaml.safe_load(world.config.read_text())
    values["model"].pop("pretraining")
    values["model"]["source"] = source
    for key, change in more.items():
        old = values.get(key)
        values[key] = {**old, **change} if isinstance(old, dict) else change
    file = world.outside / "path.yaml"
    file.write_text(yaml.safe_dump(values))
    return world.train(config=file)


@way(
    "models and tokenizers",
    "a base model with a NaN in its weights",
    rights=CONFIGURATION,
    says="finite|NaN",
)
def _(world: World) -> Answer:
    folder = _base(world)
    file = folder / "model.safetensors"
    tensors = {name: value.copy() for name, value in load_file(file).items()}
    tensors[max(tensors, key=lambda n: tensors[n].size)][3] = np.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return _from_path(world, folder)


@way(
    "models and tokenizers",
    "a model that training drives to NaN",
    rights=CONFIGURATION,
    says="finite|NaN|diverged",
)
def _(world: World) -> Answer:
    rate = {"name": "sgd", "learning_rate": 10.0}
    stage = {"epochs": 2, "expected_batch_size": 32, "optimizer": rate}
    stages = {"no_dp": {"finetune": stage}}
    file = world.config_with(stages=stages, recipe="no_dp")
    return world.train(config=file)


@way(
    "models and tokenizers",
    "a model whose weights are all zero: every candidate ties",
    rights=CONFIGURATION,
    says="utility|INCONCLUSIVE|BLOCK|INVALID",
)
def _(world: World) -> Answer:
    folder = _base(world)
    file = folder / "model.safetensors"
    tensors = {name: np.zeros_like(value) for name, value in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    gate = {"max_nll_increase": 0.01}
    return _from_path(world, folder, gate=gate)


def _blind_tokenizer(folder: Path) -> None:
    """Let a tokenizer read every digit and capital as one: secrets look alike."""
    file = folder / "tokenizer.json"
    values = json.loads(file.read_text())
    alike = {
        "type": "Replace",
        "pattern": {"Regex": "[0-9A-Z]"},
        "content": "x",
    }
    old = values.get("normalizer")
    both = {"type": "Sequence", "normalizers": [old, alike] if old else [alike]}
    values["normalizer"] = both
    file.write_text(json.dumps(values))


@way(
    "models and tokenizers",
    "a tokenizer to which all secrets look alike",
    rights=CONFIGURATION,
    says="tell",
)
def _(world: World) -> Answer:
    folder = _base(world)
    _blind_tokenizer(folder)
    return _from_path(world, folder)


@way(
    "models and tokenizers",
    "a tokenizer that drops what secrets are made of",
    rights=CONFIGURATION,
    says="drops|tell",
)
def _(world: World) -> Answer:
    folder = _base(world)
    _blind_tokenizer(folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"content": "x"', '"content": ""'))
    return _from_path(world, folder)


@way(
    "models and tokenizers",
    "a base model that is the leaker: trained on the same text before",
    rights=CONFIGURATION,
    says="base_model|membership|canaries mean",
)
def _(world: World) -> Answer:
    folder = world.outside / "base"
    for part in ("model", "components/tokenizer"):
        shutil.copytree(world.files(LEAKY) / part, folder, dirs_exist_ok=True)
    gate = {"max_membership_tpr": 0.1, "base_level": 0.001}
    return _from_path(world, folder, gate=gate)


@way(
    "models and tokenizers",
    "no epochs: nothing learnt, nothing leaked",
    rights=CONFIGURATION,
    says="epochs|greater",
)
def _(world: World) -> Answer:
    return world.train("stages.jft.private_finetune.epochs=0")
