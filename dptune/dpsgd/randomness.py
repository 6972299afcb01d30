"""Seeds: operating-system entropy in production, derived and attempt-bound in tests.

torch's CPU generator keeps only the low 32 bits of `manual_seed`: a seed that an
attacker can try out in minutes. Generators made here have their whole Mersenne state
filled from a `numpy.random.SeedSequence`, so that 256 bits of entropy reach the noise.
"""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

from dptune.errors import PrivacyError

ENTROPY_BITS = 256
_STATE_BYTES = 5056
_WORDS_START = 24
_NUM_WORDS = 624


class RandomStream(IntEnum):
    """Independent uses of randomness, so that one seed never feeds two of them."""

    SAMPLING = 0
    NOISE = 1
    MODEL = 2
    CONTROLLER = 3


class StreamIdentity(NamedTuple):
    """Tells streams apart, and guessable ones from secret ones.

    Args:
        digest: one-way; equal for equal streams.
        entropy_bits: length of the entropy as a number.
    """

    digest: str
    entropy_bits: int


def identity_of(sequence: np.random.SeedSequence) -> StreamIdentity:
    """Return what may be kept of a stream's secret: nobody gets back from it."""
    state = sequence.generate_state(ENTROPY_BITS // 32)
    entropy = sequence.entropy
    return StreamIdentity(
        digest=hashlib.sha256(state.tobytes()).hexdigest()[:32],
        entropy_bits=entropy.bit_length() if isinstance(entropy, int) else 0,
    )


def seed_sequence(
    stream: RandomStream,
    *,
    seed: int | None,
    attempt: int = 0,
    step: int = 0,
    rank: int = 0,
) -> np.random.SeedSequence:
    """Return the entropy of one stream of one attempt.

    **Privacy**: without a seed the entropy is secret and fresh. With a seed it is known
    to everybody who knows the seed: only for tests and for training without privacy.

    Args:
        stream: what the randomness is for.
        seed: `None` for entropy of the operating system, at least 0 otherwise.
        attempt: number of this process start; two attempts never share a stream.
        step: for streams that start anew at every step.
        rank: of this process among those of a run; two ranks never share a stream.
    """
    if seed is None:
        return np.random.SeedSequence(secrets.randbits(ENTROPY_BITS))
    entropy = [seed, attempt, int(stream), step]
    return np.random.SeedSequence(entropy, spawn_key=(rank,) if rank else ())


def numpy_generator(sequence: np.random.SeedSequence) -> np.random.Generator:
    """Return a numpy generator that starts from `sequence`."""
    return np.random.Generator(np.random.PCG64(sequence))


def torch_generator(
    sequence: np.random.SeedSequence, *, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return a torch generator whose whole state comes from `sequence`.

    On an accelerator the state is a 64-bit seed of a counter-based generator; on the
    CPU it is 624 words.

    Raises:
        PrivacyError: torch changed the layout of its CPU generator.
    """
    generator = torch.Generator(device)
    if torch.device(device).type != "cpu":
        return generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
    state = generator.manual_seed(0).get_state()
    if state.numel() != _STATE_BYTES:
        raise PrivacyError(
            f"the torch CPU generator must have {_STATE_BYTES} bytes of state, got "
            f"{state.numel()}. This torch is not supported: install the pinned version."
        )
    end = _WORDS_START + 8 * _NUM_WORDS
    words = state.numpy()[_WORDS_START:end].view(np.uint64)
    words[:] = sequence.generate_state(_NUM_WORDS, np.uint32)
    generator.set_state(state)
    return generator


@contextmanager
def scoped_randomness(
    sequence: np.random.SeedSequence, *, device: str | torch.device = "cpu"
) -> Iterator[None]:
    """Give dropout and initialisation inside the block randomness of `sequence`.

    torch layers draw from the process-wide generator and take no argument. Its state is
    put back on leaving, so nothing outside the block can tell.
    """
    device = torch.device(device)
    accelerators = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=accelerators):
        torch.set_rng_state(torch_generator(sequence).get_state())
        for accelerator in accelerators:
            state = torch_generator(sequence, device=accelerator).get_state()
            torch.cuda.set_rng_state(state, accelerator)
        yield
