"""Does any architecture of transformers train beyond C behind the self-check?

PYTHONPATH=. python benchmarks/architectures.py --out FILE

Every causal language model and sequence classifier of transformers is built as a tiny
random model and put through the check that precedes every private stage. Those that
pass are measured by the sums that training would form: rows of 3 to 512 tokens, with
and without one unit, a short and a long one, every gradient clipped. The distance over
C must be at most 1 + 1e-5. Lines that are in the output file already are not run again.
"""

import argparse
import contextlib
import inspect
import io
import json
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.models.auto import modeling_auto

from dptune.dpsgd.clipping import FlatClip
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.prechecks import check_private, training_mode
from dptune.dpsgd.randomness import (
    RandomStream,
    scoped_randomness,
    seed_sequence,
)
from dptune.dpsgd.sampling import UnitIndices
from dptune.errors import DptuneError
from dptune.models.build import add_lora

Clip = Callable[[torch.Tensor], torch.Tensor]
VOCABULARY = 128
PAD = 1
POSITIONS = 640
LENGTHS = (3, 512, 5, 40, 7, 129, 300, 64, 511, 17)
BATCH = 4
BAR = 1 + 1e-5
HEADS = {
    "classifier": (
        AutoModelForSequenceClassification,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    "causal": (AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
}
_SIZES: dict[str, int] = {
    "hidden_size d_model n_embd dim embed_dim model_dim emb_dim n_embed lru_width "
    "word_embed_proj_dim embedding_size d_embed decoder_hidden_size "
    "encoder_hidden_size attention_hidden_size expand_hidden_size "
    "hidden_size_per_layer_input": 32,
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers num_blocks": 2,
    "num_attention_heads n_head n_heads encoder_attention_heads num_heads "
    "decoder_attention_heads num_encoder_attention_heads "
    "num_decoder_attention_heads linear_num_value_heads": 4,
    "num_key_value_heads n_head_kv linear_num_key_heads num_kv_heads": 2,
    "head_dim d_kv attention_head_size dim_head d_head linear_key_head_dim "
    "linear_value_head_dim global_head_dim qk_nope_head_dim qk_rope_head_dim "
    "v_head_dim rotary_dim": 8,
    "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim dff n_inner "
    "ffn_hidden_size feed_forward_size feedforward_dim moe_intermediate_size "
    "ff_dim d_inner shared_expert_intermediate_size "
    "expert_intermediate_size": 64,
    "max_position_embeddings n_positions max_seq_len max_sequence_length n_ctx "
    "max_seq_length max_target_positions max_source_positions": POSITIONS,
    "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
    "num_experts_per_tok num_experts_per_token moe_top_k moe_k top_k": 2,
    "n_group topk_group n_shared_experts": 1,
    "q_lora_rank kv_lora_rank o_lora_rank": 16,
    "state_size ssm_state_size mamba_d_state d_state": 8,
    "vocab_size vocab_size_per_layer_input": VOCABULARY,
    "type_vocab_size": 2,
}
SIZES = {name: size for names, size in _SIZES.items() for name in names.split()}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "reformer": {
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [16, 16],
        "attn_layers": ["local", "lsh"],
        "is_decoder": True,
    },
    "modernbert": {"layer_types": None},
    "xlnet": {"d_inner": 64},
    "funnel": {"block_sizes": [1, 1], "d_inner": 64, "num_decoder_layers": 1},
    "big_bird": {"block_size": 16, "num_random_blocks": 2},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "longformer": {"attention_window": 16},
    "squeezebert": {"embedding_size": 32},
    "ctrl": {"dff": 64},
    "bloom": {"n_head": 4},
    "yoso": {"max_position_embeddings": 640},
    "mra": {"max_position_embeddings": 640, "block_per_row": 2},
    "convbert": {"embedding_size": 32, "head_ratio": 2},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 32},
    "lilt": {"hidden_size": 48},
    "canine": {"num_hash_buckets": 64, "local_transformer_stride": 32},
    "rwkv": {"attention_hidden_size": 32, "context_length": 640},
    "xlm": {"n_layers": 2, "max_position_embeddings": 640},
    "flaubert": {"n_layers": 2, "max_position_embeddings": 640},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "esmc": {"num_key_value_heads": 4},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "hunyuan_v1_dense": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                         "rope_theta": 10000.0}},
    "hunyuan_v1_moe": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                       "rope_theta": 10000.0}},
    "ministral": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                  "rope_theta": 10000.0}},
    "nemotron": {"head_dim": 8},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2,
                  "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
                  "d_model": 32, "qk_channels": 32, "v_channels": 32},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20,
                 "pronunciation_embed_dim": 8, "shape_embed_dim": 8},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1},
    "zamba2": {"layers_block_type": None, "num_hidden_layers": 54, "mamba_d_state": 4},
    "jamba": {"mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2,
              "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1},
    "zamba": {"mamba_d_state": 8, "n_mamba_heads": 1, "attention_head_dim": 16,
              "num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1},
    "xlstm": {"num_heads": 2, "qk_dim_factor": 0.5, "chunk_size": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 16},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One architecture, its head, what trains, and how large its weights are."""

    model_type: str
    head: str
    lora: bool
    scale: int

    @property
    def key(self) -> str:
        """Name in the output."""
        trained = "lora" if self.lora else "full"
        return f"{self.model_type}/{self.head}/{trained}/x{self.scale}"


def shrunk(model_type: str, *, dropout: bool) -> transformers.PreTrainedConfig:
    """Return the configuration of a tiny model."""
    kind = type(AutoConfig.for_model(model_type))
    return _shrunk(kind, OVERRIDES.get(model_type, {}), dropout=dropout)


def _shrunk(
    kind: type[Any], overrides: dict[str, Any], *, dropout: bool
) -> transformers.PreTrainedConfig:
    """Build a configuration from its class, by the names of its fields."""
    full = kind()
    fields: dict[str, Any] = {}
    known = set(inspect.signature(kind.__init__).parameters) | set(vars(full))
    for name, value in vars(full).items():
        if isinstance(value, transformers.PreTrainedConfig):
            fields[name] = _shrunk(type(value), overrides, dropout=dropout)
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            is_length = SIZES[name] == POSITIONS
            fields[name] = POSITIONS if is_length else min(SIZES[name], value)
            if "key_value" in name and value == getattr(full, "num_attention_heads", 0):
                fields[name] = SIZES["num_attention_heads"]
        elif not dropout and ("drop" in name) and isinstance(value, float):
            fields[name] = 0.0
        elif name.endswith("token_id") and isinstance(value, int):
            fields[name] = value % VOCABULARY if name != "pad_token_id" else PAD
    for alias in getattr(full, "attribute_map", {}):
        if alias in SIZES and full.attribute_map[alias] not in fields:
            value = getattr(full, alias, None)
            if isinstance(value, int) and not isinstance(value, bool):
                fields[full.attribute_map[alias]] = min(SIZES[alias], value)
    fields |= {"pad_token_id": PAD, "eos_token_id": 2, "bos_token_id": 0}
    fields |= {n: v for n, v in overrides.items() if n in known or n in vars(full)}
    fields.setdefault("vocab_size", VOCABULARY)
    for name in ("text_config", "decoder", "encoder"):
        if isinstance(getattr(full, name, None), transformers.PreTrainedConfig):
            fields.pop("vocab_size", None)
    return kind(**fields)


def build(case: Case, *, dropout: bool) -> nn.Module:
    """Build the model from a public seed, and scale its weights."""
    config = shrunk(case.model_type, dropout=dropout)
    config.num_labels = 3
    with (
        scoped_randomness(seed_sequence(RandomStream.MODEL, seed=0)),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        model: Any = HEADS[case.head][0].from_config(config)
        model.to(torch.float32)
        if model.num_parameters() > 4_000_000:
            raise RuntimeError(f"not tiny: {model.num_parameters()} weights")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(case.scale)
        if case.lora:
            model = adapted(model)
    trained: nn.Module = model
    return trained


def adapted(model: transformers.PreTrainedModel) -> nn.Module:
    """Add adapters to the linear layers that attention and mixing are made of."""
    words = ("q", "k", "v", "query", "key", "value", "c_attn", "in_proj", "out_proj")
    words += ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "Wqkv")
    words += ("q_lin", "v_lin", "q_b_proj", "o_proj", "qkv", "dense")
    kinds: dict[str, set[type]] = {}
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in words:
            kinds.setdefault(last, set()).add(type(module))
    targets = [
        n for n, found in kinds.items() if all(issubclass(k, nn.Linear) for k in found)
    ] or [n for n in kinds if n == "c_attn"]
    lora = add_lora(model, rank=4, alpha=8, target_modules=targets or None)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # as after some steps: B is not zero any more
        for name, parameter in lora.named_parameters():
            if "lora_B" in name:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.05 * drawn)
    return lora


def feed_of(case: Case, *, longest: int, vocabulary: int) -> Feed:
    """Return made-up units of one row of 3 to 512 tokens."""
    draws = np.random.default_rng(5)
    lengths = [min(n, longest) for n in LENGTHS]
    data = UnitDataset(
        sequences=tuple(draws.integers(3, vocabulary - 2, n) for n in lengths),
        loss_weights=tuple(np.ones(n, np.float32) for n in lengths),
        units=tuple(np.asarray([i]) for i in range(len(lengths))),
        labels=np.arange(len(lengths)) % 3 if case.head == "classifier" else None,
    )
    return Feed(
        data=data,
        record_loss=ClassificationLoss()
        if case.head == "classifier"
        else CausalLoss(loss_normalizer=float(longest)),
        physical_batch_size=BATCH,
        pad_token_id=PAD,
        device=torch.device("cpu"),
        autocast=False,
        max_tokens=longest,
    )


def measure(model: nn.Module, feed: Feed) -> float:
    """Return the largest distance of clipped sums of neighbours, over C."""
    worst = 0.0
    everyone = np.arange(feed.data.num_units)
    with training_mode(model), PerUnitGradients(model) as engine:
        norms: list[torch.Tensor] = []
        _sum(model, engine, feed, everyone, lambda n: norms.append(n) or n * 0)
        found = torch.cat(norms, 1)
        bound = 0.1 * float(found[found > 0].min())
        clip = FlatClip(max(bound, 1e-12))
        whole = _sum(model, engine, feed, everyone, clip.factors)
        for unit in (0, 1, 5):
            rest = _sum(model, engine, feed, everyone[everyone != unit], clip.factors)
            square = sum(
                float((whole[n].double() - rest[n].double()).square().sum())
                for n in whole
            )
            worst = max(worst, square**0.5 / bound)
    return worst


def _sum(
    model: nn.Module,
    engine: PerUnitGradients,
    feed: Feed,
    units: UnitIndices,
    clip: Clip,
) -> dict[str, torch.Tensor]:
    """Add up clipped gradients, with the same chance for everybody."""
    sums = engine.zeros()
    with scoped_randomness(seed_sequence(RandomStream.MODEL, seed=3)):
        for batch in feed.batches(units):
            real = slice(batch.num_real_units)  # others only fill a fixed shape

            def of_real(norms: torch.Tensor, real: slice = real) -> torch.Tensor:
                factors = torch.zeros_like(norms)
                factors[:, real] = clip(norms[:, real])
                return factors

            with engine.record(batch.rows_of_unit) as tape:
                losses = feed.losses(model, batch)
                tape.backward(losses.sum(), of_real, sums)
    return sums


def run(case: Case, *, longest: int) -> dict[str, Any]:
    """Check one case and, if it passes, measure it; say what happened."""
    result: dict[str, Any] = {"case": case.key, "type": case.model_type}
    started = time.process_time()
    try:
        model = build(case, dropout=True)
        quiet = build(case, dropout=False)
    except DptuneError as error:
        return result | {"outcome": "refused", "reason": f"adapters: {error}"}
    except Exception as error:  # noqa: BLE001 - anything may be wrong with a guess
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return result | {"outcome": "not built", "reason": reason}
    text: Any = model.config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None) or VOCABULARY
    feed = feed_of(case, longest=longest, vocabulary=vocabulary)
    fixed = ""
    try:
        check_private(model, feed, seed=0)
    except DptuneError as error:
        reason = " ".join(str(error).split())
        if "fixed_shapes to true" not in reason:
            return result | _done(started, "refused", reason)
        try:
            feed = replace(feed, fixed_shapes=True)
            check_private(model, feed, seed=0)
        except DptuneError as second:
            return result | _done(started, "refused", f"{reason} THEN {second}")
        fixed = reason
    checked = time.process_time() - started
    worst = measure(quiet, feed)
    outcome = "trained with fixed shapes" if fixed else "trained"
    return result | _done(started, outcome, fixed) | {
        "worst": worst,
        "check": round(checked, 2),
    }  # fmt: skip


def _done(started: float, outcome: str, reason: str) -> dict[str, Any]:
    """Return what every line has."""
    seconds = round(time.process_time() - started, 1)
    return {"outcome": outcome, "reason": reason[:700], "seconds": seconds}


def cases(*, every: bool) -> Iterator[Case]:
    """Yield cases: each architecture and head, modes in turn unless all are wanted."""
    modes = [(False, 1), (True, 3), (True, 1), (False, 3)]
    for turn in range(4):
        for head, (_, names) in HEADS.items():
            for index, model_type in enumerate(sorted(names)):
                lora, scale = modes[(turn + index) % 4]
                if every or turn < 2:
                    yield Case(model_type=model_type, head=head, lora=lora, scale=scale)


def summary(lines: list[dict[str, Any]]) -> str:
    """Count outcomes, cases and types; name the worst."""
    outcomes = Counter(line["outcome"] for line in lines)
    types = {o: len({x["type"] for x in lines if x["outcome"] == o}) for o in outcomes}
    trained = [line for line in lines if "worst" in line]
    worst = max(trained, key=lambda line: line["worst"], default=None)
    beyond = [line["case"] for line in trained if not line["worst"] <= BAR]
    rows = [f"| {o} | {outcomes[o]} | {types[o]} |" for o in sorted(outcomes)]
    built = {line["type"] for line in lines if line["outcome"] != "not built"}
    return "\n".join(
        [
            "| outcome | cases | architectures |",
            "|---|---|---|",
            *rows,
            f"built: {len(built)} architectures",
            f"trained beyond C (1 + 1e-5): {len(beyond)} {beyond}",
            f"worst: {worst['worst']:.9f} {worst['case']}" if worst else "none trained",
        ]
    )


def _stop(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Run what is asked for, one line of JSON for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="model types")
    parser.add_argument("--part", default="0/1", help="this process of how many")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--seconds", type=int, default=300, help="for one case")
    parser.add_argument("--every", action="store_true", help="all modes of each")
    parser.add_argument("--again", nargs="*", default=(), help="outcomes to run again")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    done: dict[str, dict[str, Any]] = {}
    if arguments.out.exists():
        lines = arguments.out.read_text().splitlines()
        done = {x["case"]: x for x in map(json.loads, lines)}
    part, parts = map(int, arguments.part.split("/"))
    for number, case in enumerate(cases(every=arguments.every)):
        old = done.get(case.key)
        skip = old is not None and old["outcome"] not in arguments.again
        wanted = not arguments.only or case.model_type in arguments.only
        if skip or not wanted or number // 2 % parts != part:
            continue
        signal.alarm(arguments.seconds)
        try:
            line = run(case, longest=arguments.longest)
        except TimeoutError:
            line = {"case": case.key, "type": case.model_type}
            line |= {"outcome": "not finished", "reason": f"{arguments.seconds} s"}
        except Exception as error:  # noqa: BLE001 - what the check must not let through
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            line = {"case": case.key, "type": case.model_type}
            line |= {"outcome": "RAW ERROR", "reason": found}
        signal.alarm(0)
        done[case.key] = line
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            line["case"],
            line["outcome"],
            line.get("worst", ""),
            line["reason"][:230],
            line.get("seconds", ""),
            flush=True,
        )
    print(summary(list(done.values())))


if __name__ == "__main__":
    main()
