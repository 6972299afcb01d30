"""Standard normal numbers from a cipher: noise that nobody can predict or replay.

On the CPU the bits are the key stream of AES-256 in counter mode, whose output nobody
can tell from chance without the key, and the Box-Muller transform makes them normal:

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

import math
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from dptune.dpsgd.randomness import identity_of, torch_generator

_PIECE = 1 << 16
_HALF = _PIECE // 2
_TAIL = 1 << 14
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
        self._numbers = torch.empty(_PIECE)
        self._cosines = torch.empty(_HALF)
        self._unused = self._numbers[:0]

    def add_to(self, values: Tensor, *, stddev: float) -> None:
        """Add independent N(0, stddev^2) to every entry, in place.

        Args:
            values: float32, contiguous, on the stream's device.
            stddev: at least 0 and finite.
        """
        flat = values.view(-1)
        if self.listener is not None:
            self.listener(len(flat), stddev)
        if self._device.type != "cpu":
            for piece in torch.split(flat, _DOUBLE_PIECE):
                noise = torch.empty_like(piece, dtype=torch.float64)
                noise.normal_(generator=self._generator)  # float32 would end at 6.7
                piece.add_(noise.float(), alpha=stddev)
            return
        done = 0
        while done < len(flat):
            noise = self._take(len(flat) - done)
            flat[done : done + len(noise)].add_(noise, alpha=stddev)
            done += len(noise)

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
