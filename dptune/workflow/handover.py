"""What a process hands to the ranks that it started, and back: data, lines of JSON.

Nothing is pickled. Data goes through a file without a name, which no kill leaves
behind; messages go through a local socket.
"""

import json
import mmap
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import ConfigError

Message = dict[str, Any]


class Channel:
    """One end of a socket that carries one line of JSON per message.

    Args:
        end: of a connected pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lines = end.makefile("rb")

    def send(self, message: Message) -> None:
        """Send a message; figures may be NaN."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """Wait for a message; None when the other end is closed or its process gone."""
        try:
            line = self._lines.readline()
        except (OSError, ValueError):  # hung up, at the other end or here
            return None
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Hang up; whoever waits at either end is woken."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()


def write_units(data: UnitDataset, file: BinaryIO) -> None:
    """Write a data set as safetensors. Private: it holds the tokens.

    Args:
        data: sequences, with or without classes.
        file: empty.

    Raises:
        ConfigError: the units are parts.
    """
    if data.kinds is not None or data.unnoised is not None:
        raise ConfigError(
            "performance.num_processes must be 1 for a recipe that trains units in "
            "parts."
        )
    bounds = [data.max_sequences_per_unit, data.num_dropped_sequences]
    tensors: dict[str, NDArray[Any]] = {"bounds": np.asarray(bounds, np.int64)}
    columns: dict[str, Sequence[NDArray[Any]]] = {
        "sequences": data.sequences,
        "loss_weights": data.loss_weights,
        "units": data.units,
    }
    for name, arrays in columns.items():
        tensors[name] = np.concatenate(arrays)
        tensors[f"{name}.lengths"] = np.asarray([len(a) for a in arrays], np.int64)
    if data.labels is not None:
        tensors["labels"] = data.labels
    file.write(save(tensors))
    file.flush()


def read_units(descriptor: int) -> UnitDataset:
    """Read what `write_units` wrote; the descriptor may be shared with others."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        tensors = load(content[:])
    max_sequences, num_dropped = tensors["bounds"].tolist()
    return UnitDataset(
        sequences=_split(tensors, "sequences"),
        loss_weights=_split(tensors, "loss_weights"),
        units=_split(tensors, "units"),
        labels=tensors.get("labels"),
        max_sequences_per_unit=max_sequences,
        num_dropped_sequences=num_dropped,
    )


def _split(tensors: dict[str, NDArray[Any]], name: str) -> tuple[NDArray[Any], ...]:
    """Cut a column into its arrays."""
    ends = np.cumsum(tensors[f"{name}.lengths"])
    return tuple(np.split(tensors[name], ends[:-1]))
