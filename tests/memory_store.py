"""The slots of a decision log in memory, for the model and for tests of the log itself."""

from __future__ import annotations

from beadline.points import reach


class MemoryStore:
    """Slots in a dictionary, with the same crash points as the real ones."""

    def __init__(self) -> None:
        """Begin empty."""
        self.data: dict[int, bytes] = {}

    def create(self, slot: int, data: bytes) -> bool:
        """Create the slot; False if it is taken."""
        reach("append.written")
        if slot in self.data:
            return False
        self.data[slot] = data
        reach("append.linked")
        return True

    def read(self, slot: int) -> bytes | None:
        """Return the slot's bytes, or None if it is empty."""
        return self.data.get(slot)

    def slots(self) -> list[int]:
        """Return the taken slots, in order."""
        return sorted(self.data)

    def delete(self, slot: int) -> None:
        """Empty a slot."""
        self.data.pop(slot, None)

    def path(self, slot: int) -> str:
        """Return a name for errors."""
        return f"memory:{slot}"

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    def tidy(self) -> None:
        """Nothing has a temporary name."""

    def close(self) -> None:
        """Nothing is held."""
