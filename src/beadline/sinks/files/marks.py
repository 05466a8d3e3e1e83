"""What a folder of files remembers of a query: one empty folder whose *name* says it all.

    <target>/.beadline/<query>/<sink>~<incarnation>~<epoch>~<nonce>/

A mark that were rewritten in place could move backwards: a zombie looks, sleeps, and writes an old
epoch over a new one. Here every epoch's mark is a name of its own and the newest counts, so that a
late mark changes nothing; the next commit takes it away with the other old ones.

Marks are in the target, so that they share its fate: who deletes it and makes it again, or restores
an older copy of it, does the same to them, and that is noticed. They are folders because a reader
that lists files, even recursively and knowing nothing of hidden names, must see finished files
only. On HDFS a folder also has no block to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from beadline.files import FileSystem, join
from beadline.sink import EpochId, Seen

_SEPARATOR = "~"


@dataclass(frozen=True)
class Mark:
    """One sink's newest finished epoch of one incarnation, and the name that says so."""

    sink: str
    incarnation: str
    epoch: int
    nonce: str

    def __str__(self) -> str:
        fields = (self.sink, self.incarnation, str(self.epoch), quote(self.nonce, safe=""))
        return _SEPARATOR.join(fields)

    @classmethod
    def parse(cls, name: str) -> Mark | None:
        """Read a name; ``None`` for another's or a temporary one."""
        fields = name.split(_SEPARATOR, 3)
        if len(fields) != 4 or not fields[2].isdecimal():
            return None
        return cls(fields[0], fields[1], int(fields[2]), unquote(fields[3]))

    @property
    def seen(self) -> Seen:
        """The form in which the protocol is told."""
        return Seen(self.incarnation, self.epoch, self.nonce)


@dataclass(frozen=True)
class Marks:
    """The marks of all queries of one name in one target; a handful at any time."""

    files: FileSystem
    target: str
    staging: str
    query: str

    @property
    def folder(self) -> str:
        """Where they are."""
        return join(self.target, ".beadline", self.query)

    @property
    def former(self) -> str:
        """Where earlier versions kept them, as empty files beside the target; moved by a commit."""
        return join(self.staging, "seen", self.query)

    def all(self) -> list[Mark]:
        """Every mark, of any incarnation and sink."""
        names = (*self.files.names(self.folder), *self.files.names(self.former))
        found = (Mark.parse(name) for name in dict.fromkeys(names))
        return [mark for mark in found if mark is not None]

    def newest(self, sink: str, incarnation: str) -> int:
        """The newest finished epoch; -1 for none."""
        own = (m.epoch for m in self.all() if (m.sink, m.incarnation) == (sink, incarnation))
        return max(own, default=-1)

    def write(self, sink: str, epoch: EpochId) -> None:
        """Say durably that an epoch is finished, then forget the ones before it."""
        mark = Mark(sink, epoch.query.incarnation, epoch.number, epoch.nonce)
        self.files.make_folder(join(self.folder, str(mark)))
        for place, newest in ((self.folder, mark.epoch - 1), (self.former, mark.epoch)):
            for old in filter(None, map(Mark.parse, self.files.names(place))):
                same = (old.sink, old.incarnation) == (mark.sink, mark.incarnation)
                if same and old.epoch <= newest:
                    self.files.delete(join(place, str(old)))

    def forget_former(self) -> None:
        """Drop the marks beside a target that is gone; those that were in it went with it."""
        self.files.delete(self.former)
