"""Randomness: operating-system entropy, or a seed in tests; noise nobody can replay.

**Seeds.** torch's CPU generator keeps only the low 32 bits of `manual_seed`: a seed
that an attacker can try out in minutes. Generators made here have their whole Mersenne
state filled from a `numpy.random.SeedSequence`, so that 256 bits of entropy reach the
noise.

**Standard normal numbers from a cipher.** On the CPU the bits are the key stream of
AES-256 in counter mode, whose output nobody can tell from chance without the key, and
the Box-Muller transform makes them normal:

    r = sqrt(-2 ln u), x = r cos(pi v), y = r sin(pi v),

with u uniform on (0, 1] and v on [-1, 1]. It is also faster than torch's generator,
since every piece stays in the cache. On an accelerator torch's counter-based generator
is used, whose seed has 63 bits.

Where u is small it gets 64 more bits. With 32 bits alone no number exceeds 6.8, and the
largest lie on a few circles: with 10^8 parameters, one step in which a unit joins would
then show it, beyond any epsilon, with a probability of 4e-5 (noise multiplier 1).

References:
    Box and Muller (1958), doi:10.1214/aoms/1177706645. NIST SP 800-38A, section 6.5
    (counter mode).
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

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


_PIECE = 1 << 16
_HALF = _PIECE // 2
_TAIL = 1 << 14
_EXACT = torch.float32  # whatever kind of number a script has made the default
_DOUBLE_PIECE = 1 << 24
_KEY_BYTES = 32
_NONCE_BYTES = 16


class GaussianStream:
    """Independent N(0, 1) numbers, float32, whose randomness is all in `sequence`.

    **Formal guarantee**: if AES-256 is a pseudo-random permutation, no efficient
    observer of some numbers of the stream learns anything of the others. Numbers have
    float32 resolution and end at 11.5 standard deviations on the CPU, beyond 8 on an
    accelerator, which a normal number exceeds with probability 1e-29 and 1e-15.

    **Privacy**: the stream is secret; whoever knows its state can subtract the noise.

    Args:
        sequence: entropy; see `seed_sequence`.
        device: where the numbers are wanted.
    """

    def __init__(
        self, sequence: np.random.SeedSequence, *, device: str | torch.device = "cpu"
    ) -> None:
        self._device = torch.device(device)
        self.identity = identity_of(sequence)
        self.listener: Callable[[int, float], None] | None = None
        """Told how many numbers are asked for, and with what stddev."""
        if self._device.type != "cpu":
            self._generator = torch_generator(sequence, device=device)
            return
        secret = sequence.generate_state((_KEY_BYTES + _NONCE_BYTES) // 4).tobytes()
        cipher = Cipher(
            algorithms.AES(secret[:_KEY_BYTES]), modes.CTR(secret[_KEY_BYTES:])
        )
        self._encryptor = cipher.encryptor()
        self._zeros = bytes(4 * _PIECE)
        self._key_stream = bytearray(4 * _PIECE + _NONCE_BYTES)
        self._bits = torch.frombuffer(self._key_stream, dtype=torch.int32, count=_PIECE)
        self._numbers = torch.empty(_PIECE, dtype=_EXACT, device="cpu")
        self._cosines = torch.empty(_HALF, dtype=_EXACT, device="cpu")
        self._unused = self._numbers[:0]

    def add_to(self, *tensors: Tensor, stddev: float) -> None:
        """Add independent N(0, stddev^2) to every entry, in place.

        Args:
            tensors: float32, contiguous, on the stream's device.
            stddev: at least 0 and finite.
        """
        flats = [values.view(-1) for values in tensors]
        for flat in flats:
            if self.listener is not None:
                self.listener(len(flat), stddev)
        if self._device.type != "cpu":
            for pieces in _runs(flats, _DOUBLE_PIECE):
                self._add_at_once(pieces, stddev)
            return
        for flat in flats:
            done = 0
            while done < len(flat):
                noise = self._take(len(flat) - done)
                flat[done : done + len(noise)].add_(noise, alpha=stddev)
                done += len(noise)

    def _add_at_once(self, pieces: list[Tensor], stddev: float) -> None:
        """Draw for several tensors together: an accelerator starts three kernels."""
        lengths = [len(piece) for piece in pieces]
        noise = pieces[0].new_empty(sum(lengths), dtype=torch.float64)
        noise.normal_(generator=self._generator)  # float32 would end at 6.7
        numbers = torch.split(noise.float(), lengths)
        torch._foreach_add_(pieces, list(numbers), alpha=stddev)

    def _take(self, at_most: int) -> Tensor:
        """Return at least one number that was never returned before."""
        if len(self._unused) == 0:
            self._refill()
        taken, self._unused = self._unused[:at_most], self._unused[at_most:]
        return taken

    def _refill(self) -> None:
        """Make the next piece of the stream."""
        self._encryptor.update_into(self._zeros, self._key_stream)
        numbers = self._numbers.copy_(self._bits)
        radius, angle = numbers[:_HALF], numbers[_HALF:]
        radius.abs_()
        self._refine(radius)
        radius.mul_(2.0**-31).log_().mul_(-2).sqrt_()
        angle.mul_(math.pi * 2.0**-31)
        torch.cos(angle, out=self._cosines)
        angle.sin_().mul_(radius)
        radius.mul_(self._cosines)
        self._unused = numbers

    def _refine(self, radius: Tensor) -> None:
        """Put 64 fresh bits behind the point of small numbers, rare as they are."""
        if radius.numpy().min() >= _TAIL:
            return
        small = (radius < _TAIL).nonzero()[:, 0]
        bits = self._bits[small]
        whole = torch.where(bits < 0, -1 - bits, bits)  # 0 as likely as 1, 2, ...
        fresh = self._encryptor.update(bytes(8 * len(small)))
        fraction = (np.frombuffer(fresh, np.uint64) + 0.5) * 2.0**-64
        radius[small] = (whole + torch.from_numpy(fraction)).float()


def _runs(flats: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Cut vectors into pieces, and yield as many together as have so many entries.

    >>> flats = [torch.ones(3), torch.ones(1), torch.ones(5)]
    >>> [[len(one) for one in run] for run in _runs(flats, 4)]
    [[3, 1], [4], [1]]
    """
    run: list[Tensor] = []
    room = most
    for piece in (piece for flat in flats for piece in torch.split(flat, most)):
        if run and len(piece) > room:
            yield run
            run, room = [], most
        run.append(piece)
        room -= len(piece)
    if run:
        yield run
