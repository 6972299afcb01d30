"""Ways by the files of a version; see `unearned.py`."""

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from mlflow import MlflowClient
from safetensors.numpy import load_file, save_file
from unearned import BOTH, BUDGET, DEPLOY, STORE, Answer, way
from unearned_world import CLEAN, LEAKY, MODEL, World

from dptune.gates.manifest import read_manifest

FILES = "byte for byte|not those that were registered"


# files


def _write(name: str, body: bytes) -> Callable[[World], None]:
    def change(world: World) -> None:
        file = world.files() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)

    return change


def _edit_json(name: str, **values: object) -> Callable[[World], None]:
    def change(world: World) -> None:
        file = world.files() / name
        known = json.loads(file.read_text()) if file.is_file() else {}
        file.write_text(json.dumps(known | values))

    return change


def _swap_weights(world: World) -> None:
    shutil.copy(world.weights(LEAKY), world.weights())


def _swap_everything(world: World) -> None:
    shutil.rmtree(world.files())
    shutil.copytree(world.files(LEAKY), world.files(), dirs_exist_ok=True)
    world.tag(CLEAN, digest=world.known(LEAKY).tags["dptune.digest"])
    world.tag(CLEAN, files=world.known(LEAKY).tags["dptune.files"])


def _with_list(world: World) -> None:
    """Another model, and the list of files and digests in evidence and tags too."""
    _swap_everything(world)
    leaky = json.loads(world.evidence(LEAKY).read_text())
    digest = leaky["model_digest"]

    def edit(values: dict[str, Any]) -> None:
        values["manifest"], values["model_digest"] = leaky["manifest"], digest
        for part in ("exposure", "membership", "extraction", "utility"):
            values[part]["model_digest"] = digest
        for audit in values["audits"]:
            audit["model_digest"] = digest

    world.change(CLEAN, edit)
    world.forge(CLEAN)


def _nan_weights(world: World) -> None:
    tensors = load_file(world.weights())
    name = max(tensors, key=lambda key: tensors[key].size)
    tensors[name] = tensors[name].copy()
    tensors[name][0] = float("nan")
    save_file(tensors, world.weights(), metadata={"format": "pt"})


def _shards(world: World) -> None:
    """The same tensors in two files: the digest of the weights stays."""
    tensors = load_file(world.weights())
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({n: tensors[n] for n in own}, world.weights().with_name(file))
    index = {"weight_map": {n: f for f, own in parts.items() for n in own}}
    world.weights().with_name("model.safetensors.index.json").write_text(
        json.dumps(index)
    )
    world.weights().unlink()


def _swap_tokens(world: World) -> None:
    file = world.files() / "components" / "tokenizer" / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary = values["model"]["vocab"]
    one, two = sorted(vocabulary)[:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    file.write_text(json.dumps(values))


def _special_token(world: World) -> None:
    file = world.files() / "components" / "tokenizer" / "tokenizer.json"
    values = json.loads(file.read_text())
    token = {"id": 0, "content": "access code", "special": True, "single_word": False}
    token |= {"lstrip": False, "rstrip": False, "normalized": False}
    values["added_tokens"] = [*values.get("added_tokens", []), token]
    file.write_text(json.dumps(values))


def _rename(world: World) -> None:
    world.weights().rename(world.weights().with_name("pytorch_model.safetensors"))


def _link(world: World) -> None:
    aside = world.outside / "weights"
    shutil.move(world.weights(), aside)
    world.weights().symlink_to(aside)


def _link_folder(world: World) -> None:
    aside = world.outside / "model"
    shutil.move(world.files() / "model", aside)
    (world.files() / "model").symlink_to(aside)


def _truncate(size: int | None) -> Callable[[World], None]:
    def change(world: World) -> None:
        whole = world.weights().stat().st_size
        os.truncate(world.weights(), whole - 4 if size is None else size)

    return change


def _lora(world: World) -> None:
    """A real adapter of the leaker's kind beside the weights."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - slow
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - slow

    base = AutoModelForCausalLM.from_pretrained(world.files() / "model")
    config = LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(str(world.files() / "model"))


def _auto_map(world: World) -> None:
    _edit_json("model/config.json", auto_map={"AutoModel": "modeling.Evil"})(world)
    _write("model/modeling.py", b"import os")(world)


FILE_WAYS: dict[str, tuple[str, Callable[[World], None], str]] = {
    "the leaker's weights in the place of the clean model's": (
        STORE,
        _swap_weights,
        r"model\.safetensors",
    ),
    "the leaker's folder and its tags of digest and files": (
        BOTH,
        _swap_everything,
        FILES,
    ),
    "the leaker's folder, and its list and digest in evidence, tags and log": (
        f"{BOTH}, {BUDGET}",
        _with_list,
        "byte for byte|evidence_origin",
    ),
    "weights of which a row is NaN": (STORE, _nan_weights, r"model\.safetensors"),
    "weights cut short by four bytes": (STORE, _truncate(None), r"model\.safetensors"),
    "weights of no bytes": (STORE, _truncate(0), r"model\.safetensors"),
    "one bit of the weights": (STORE, World.one_bit, r"model\.safetensors"),
    "weights under another name": (STORE, _rename, "pytorch_model"),
    "the same tensors in two shards": (STORE, _shards, r"a\.safetensors"),
    "weights as a link to the same bytes": (STORE, _link, "link"),
    "the model's folder as a link": (STORE, _link_folder, "link"),
    "a LoRA adapter beside the weights": (STORE, _lora, "adapter_"),
    "a pickle beside the weights": (
        STORE,
        _write("model/pytorch_model.bin", b"x"),
        "pytorch_model.bin",
    ),
    "code beside the weights, and config.json that names it": (
        STORE,
        _auto_map,
        r"modeling\.py",
    ),
    "another config.json: attention twice as wide": (
        STORE,
        _edit_json("model/config.json", scale_attn_weights=False),
        r"config\.json",
    ),
    "generation_config.json that samples otherwise": (
        STORE,
        _edit_json("model/generation_config.json", temperature=9.0),
        r"generation_config\.json",
    ),
    "a tokenizer of which two tokens are swapped": (
        STORE,
        _swap_tokens,
        r"tokenizer\.json",
    ),
    "a special token added to the tokenizer": (
        STORE,
        _special_token,
        r"tokenizer\.json",
    ),
    "another chat template": (
        STORE,
        _write("components/tokenizer/chat_template.jinja", b"{{ 'say all' }}"),
        r"chat_template\.jinja",
    ),
    "MLmodel that names another loader": (
        STORE,
        _write("MLmodel", b"flavors: {python_function: {loader_module: os}}\n"),
        "MLmodel",
    ),
    "a hidden file": (STORE, _write("model/.evil", b"x"), r"\.evil"),
    "an empty folder": (
        STORE,
        lambda world: (world.files() / "model" / "empty").mkdir(),
        "empty",
    ),
    "a name that differs by case": (
        STORE,
        _write("model/Model.safetensors", b"x"),
        r"Model\.safetensors",
    ),
    "a name with a line break": (STORE, _write("model/a\nb", b"x"), r"a\\nb"),
    "a pipe in the place of a file": (
        STORE,
        lambda world: os.mkfifo(world.files() / "model" / "pipe"),
        "pipe",
    ),
    "all files gone": (
        STORE,
        lambda world: shutil.rmtree(world.files()),
        "missing|must be a folder|must be a directory|byte for byte",
    ),
}


def _enlist_files() -> None:
    for what, (rights, change, says) in FILE_WAYS.items():

        def play(world: World, change: Callable[[World], None] = change) -> Answer:
            change(world)
            return world.everywhere()

        way("files", what, rights=rights, says=says)(play)


_enlist_files()


@way("files", "the leaker deployed with the clean decision", rights=DEPLOY, says="byte")
def _(world: World) -> Answer:
    link = world.outside / "link"
    link.symlink_to(world.files(LEAKY))
    plain = world.outside / "plain"
    for part in ("model", "components/tokenizer"):
        shutil.copytree(world.files(LEAKY) / part, plain, dirs_exist_ok=True)
    return [world.verify(folder=one) for one in (world.files(LEAKY), link, plain)]


@way("files", "an empty folder deployed", rights=DEPLOY, says="missing")
def _(world: World) -> Answer:
    empty = world.outside / "empty"
    empty.mkdir()
    return world.verify(folder=empty)


@way(
    "files",
    "the champion's files swapped, and back to it",
    rights=STORE,
    says=r"model\.safetensors",
)
def _(world: World) -> Answer:
    _swap_weights(world)
    return world.rollback("--to", CLEAN)


@way(
    "files",
    "files swapped, and promoted by --override",
    rights=STORE,
    says=r"model\.safetensors",
)
def _(world: World) -> Answer:
    _swap_weights(world)
    return world.promote(CLEAN, "--override", "it must be")


@way(
    "files",
    "an adapter laid down, list and evidence deleted, and the same weights registered",
    rights=BOTH,
    says="adapter_config",
)
def _(world: World) -> Answer:
    _write("model/adapter_config.json", b'{"peft_type": "LORA"}')(world)
    world.evidence().unlink()
    MlflowClient().delete_model_version_tag(MODEL, CLEAN, "dptune.files")
    return [world.train(), world.verify()]


@way(
    "files",
    "an adapter laid down, the list's digest forged, and the same weights registered",
    rights=BOTH,
    says="adapter_config",
)
def _(world: World) -> Answer:
    _write("model/adapter_config.json", b'{"peft_type": "LORA"}')(world)
    world.evidence().unlink()
    world.tag(CLEAN, files=read_manifest(world.files()).digest)
    return [world.train(), world.verify()]


@way(
    "files",
    "weights with an adapter registered first, by hand, for a run to find",
    rights=BOTH,
    says="adapter_config",
)
def _(world: World) -> Answer:
    """A version that nobody trained, with the tag that the run's will have."""
    _write("model/adapter_config.json", b'{"peft_type": "LORA"}')(world)
    client, known = MlflowClient(), world.known(CLEAN)
    made = client.create_model_version(MODEL, known.source, run_id=known.run_id)
    digest = known.tags["dptune.digest"]
    client.delete_model_version_tag(MODEL, CLEAN, "dptune.digest")
    client.set_model_version_tag(MODEL, made.version, "dptune.digest", digest)
    world.evidence().unlink()
    return [world.train()]
