"""What a folder of files remembers of a query: one empty folder whose *name* says it all.

    <target>/.beadline/<query>/<sink>~<incarnation>~<epoch>~<nonce>            finished
    <target>/.beadline/<query>/<sink>~<incarnation>~<epoch>~<nonce>~to~<next>  begun

Everything up to ``epoch`` is there, whole; of a begun mark, files of ``next`` may be there too. The
epoch of the first begun mark is -1.

A sink's mark is made once, by the first commit to a target. From then on it is only ever renamed:
begun before a pending file leaves its folder, finished when all are in the target. So it cannot
come into being in a target that was deleted or replaced, not even in the middle of a commit: the
rename finds nothing. Nor can it move backwards: a zombie that sleeps between its look and its
rename finds nothing either.

Marks are in the target, so that they are lost with it: if it is deleted and recreated, or restored
from an older copy, so are they, and that is noticed. Where a copy was restored over the newest mark
there are two of one sink, and the one that says less counts. They are folders because a reader that
lists files, even recursively and knowing nothing of hidden names, must see finished files only. On
HDFS a folder also has no block to wait for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from beadline.files import FileSystem, join
from beadline.sink import EpochId, Seen, TargetRestored, way_out

_SEPARATOR = "~"
_TO = "to"
_EPOCH = re.compile(r"-1|[0-9]+")


@dataclass(frozen=True)
class Mark:
    """One sink's newest whole epoch of one incarnation, and the one that is being moved in."""

    sink: str
    incarnation: str
    epoch: int
    nonce: str
    next: int | None = None

    def __str__(self) -> str:
        nonce = quote(self.nonce, safe="").replace(_SEPARATOR, "%7E")
        fields = [self.sink, self.incarnation, str(self.epoch), nonce]
        fields += [] if self.next is None else [_TO, str(self.next)]
        return _SEPARATOR.join(fields)

    @classmethod
    def parse(cls, name: str) -> Mark | None:
        """Read a name; ``None`` for another's or a temporary one."""
        fields = name.split(_SEPARATOR)
        if len(fields) < 4 or not _EPOCH.fullmatch(fields[2]):
            return None
        mark = cls(fields[0], fields[1], int(fields[2]), unquote(fields[3]))
        if len(fields) == 6 and fields[4] == _TO and fields[5].isdecimal():
            return replace(mark, next=int(fields[5]))
        return mark if len(fields) == 4 and mark.epoch >= 0 else None

    def is_same_owner(self, other: Mark) -> bool:
        """Whether both are of one sink and incarnation."""
        return (self.sink, self.incarnation) == (other.sink, other.incarnation)

    @property
    def reaches(self) -> int:
        """The newest epoch that may have files here."""
        return self.epoch if self.next is None else self.next

    @property
    def seen(self) -> Seen | None:
        """The form in which the protocol is told of our own; None if no epoch is whole yet."""
        return None if self.epoch < 0 else Seen(self.incarnation, self.epoch, self.nonce)


@dataclass(frozen=True)
class Marks:
    """The marks of all queries of one name in one target; one for each sink and incarnation."""

    files: FileSystem
    target: str
    staging: str
    query: str

    @property
    def folder(self) -> str:
        """Where they are."""
        return join(self.target, ".beadline", self.query)

    @property
    def former(self) -> list[str]:
        """Where earlier versions kept them, as empty files beside the target; moved by a commit.

        In the folder for pending files, which was the usual one if ``staging`` was set since.
        """
        above, _, name = self.target.rpartition("/")
        places = dict.fromkeys((self.staging, join(above, f".{name}.beadline")))
        return [join(place, "seen", self.query) for place in places]

    def all(self) -> list[Mark]:
        """Every mark, of any incarnation and sink; one beside the target only where none is in it.

        None in a target that is gone, whatever is beside it.
        """
        if not self.files.exists(self.target):
            return []
        here = _parsed(self.files.names(self.folder))
        known = {(mark.sink, mark.incarnation) for mark in here}
        beside = [mark for _, mark in self._beside()]
        newest = {(m.sink, m.incarnation): m for m in sorted(beside, key=lambda m: m.epoch)}
        return here + [mark for owner, mark in newest.items() if owner not in known]

    def of(self, sink: str, incarnation: str) -> Mark | None:
        """What the target remembers of one sink."""
        return counts(self.all(), sink, incarnation)

    def begin(self, held: Mark | None, sink: str, epoch: EpochId) -> Mark | None:
        """Durably mark the epoch as begun; None if another process was here first.

        Only a target that knows nothing of the sink gets a mark that is new.
        """
        incarnation = epoch.query.incarnation
        begun = replace(held or Mark(sink, incarnation, -1, ""), next=epoch.number)
        name = join(self.folder, str(begun))
        if held == begun or (
            held is not None and self.files.rename(join(self.folder, str(held)), name)
        ):
            return begun if self._synced() else None
        beside = [(place, mark) for place, mark in self._beside() if mark.is_same_owner(begun)]
        if held is not None and held not in (mark for _, mark in beside):
            return None
        try:
            self.files.make_folder(name)
        except FileNotFoundError:  # deleted as it was made
            return None
        if any(mark != begun for mark in self._own(begun)):  # created by a fenced driver
            self.files.delete(name)
            return None
        for place, mark in beside:
            self.files.delete(join(place, str(mark)))
        return begun

    def finish(self, begun: Mark, epoch: EpochId) -> bool:
        """Durably mark the epoch as whole; False if the target is not what it was."""
        done = replace(begun, epoch=epoch.number, nonce=epoch.nonce, next=None)
        if not self.files.rename(join(self.folder, str(begun)), join(self.folder, str(done))):
            now = self.of(begun.sink, begun.incarnation)
            return now is not None and now.epoch >= epoch.number
        if not self._synced():
            return False
        for old in self._own(done):  # left by a restore, or by a fenced driver
            if old.epoch < done.epoch:
                self.files.delete(join(self.folder, str(old)))
        return True

    def forget_former(self) -> None:
        """Drop the marks beside a target that is gone; those that were in it went with it."""
        for place in self.former:
            self.files.delete(place)

    def _beside(self) -> list[tuple[str, Mark]]:
        return [(at, mark) for at in self.former for mark in _parsed(self.files.names(at))]

    def _own(self, mine: Mark) -> list[Mark]:
        return [one for one in _parsed(self.files.names(self.folder)) if one.is_same_owner(mine)]

    def _synced(self) -> bool:
        try:
            self.files.sync_folder(self.folder)
        except FileNotFoundError:
            return False
        return True


def counts(marks: Iterable[Mark], sink: str, incarnation: str) -> Mark | None:
    """Of one sink's marks the one that says least: a copy was restored over the others."""
    own = [mark for mark in marks if (mark.sink, mark.incarnation) == (sink, incarnation)]
    return min(own, key=lambda mark: (mark.epoch, mark.reaches), default=None)


def half_gone(epoch: EpochId, sink: str, target: str, what: str) -> TargetRestored:
    """Return the error for a target that was replaced while an epoch was being moved in."""
    return TargetRestored(
        f"query {epoch.query.name!r}, epoch {epoch.number}, target {target}: {what}. Files of this "
        "epoch that were in it went with it, and the source will not redeliver their rows; "
        "those that were not stay pending. The epoch is decided: restore the original target, and "
        f"the next start finishes it. {way_out(sink, epoch.number)} Those of its "
        "files that are in the target by then stay."
    )


def _parsed(names: Iterable[str]) -> list[Mark]:
    return [mark for mark in map(Mark.parse, names) if mark is not None]
