"""A cache that forgets the least recently used values when it holds too many bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key, in this process, safe across threads.

    Two threads that miss the same key both compute it; values are pure functions of
    their keys, so it does not matter whose is kept.

    Args:
        max_bytes: of all values together; a larger value is not kept.
        size_of: bytes of one value.
    """

    def __init__(self, *, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all values now kept."""
        return self._bytes

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made now if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        self._keep(key, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _keep(self, key: K, value: V) -> None:
        """Add a value and make room for it."""
        size = self._size_of(value)
        with self._lock:
            if key in self._values or size > self._max_bytes:
                return
            self._values[key] = value
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, oldest = self._values.popitem(last=False)
                self._bytes -= self._size_of(oldest)
