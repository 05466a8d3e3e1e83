"""What Spark writes down about the state of a query: its operators, their variables and types.

It is in small files of the checkpoint, which are read here without Spark, so that it costs nothing
to look: ``state/<operator>/_metadata`` names an operator and its stores, a schema file beside it
holds the columns of each variable. How they are made is Spark's own affair (``SchemaHelper`` and
``OperatorStateMetadata`` in its code), and has not changed since 4.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from beadline.errors import CheckpointProblem
from beadline.files import FileSystem, join

STATE_FOLDER = "state"
DEFAULT_STORE = "default"
JOIN = "symmetricHashJoin"
_TRANSFORM = "transformWithState"  # how the names of its four kinds begin
_INTERNAL = "$"  # Spark's own variables: timers, expiry times, counters


@dataclass(frozen=True)
class Variable:
    """One thing that an operator remembers: a table of keys and values.

    Operators other than ``transformWithState`` have one, called ``default``; joins have one for
    each of their stores.
    """

    name: str
    key: StructType
    value: StructType
    user_key: StructType | None = None  # of a map
    kind: str = ""

    @property
    def internal(self) -> bool:
        """Whether Spark keeps it for itself."""
        return self.name.startswith(_INTERNAL) or self.kind == "TimerState"


@dataclass(frozen=True)
class StateOperator:
    """One stateful operator of a plan."""

    number: int
    name: str
    partitions: int
    variables: tuple[Variable, ...]
    time_mode: str = ""

    @property
    def transforms(self) -> bool:
        """Whether it is a ``transformWithState``, whose variables have names of the user's."""
        return self.name.startswith(_TRANSFORM)

    @property
    def has_timers(self) -> bool:
        """Whether its keys may have timers."""
        return self.transforms and self.time_mode in ("EventTime", "ProcessingTime")


def read_operators(
    files: FileSystem, checkpoint: str, epoch: int | None = None
) -> tuple[StateOperator, ...]:
    """Return the stateful operators of a checkpoint; none if its query has no state.

    With ``epoch``, as they were when it was run: a job may have been changed since.
    """
    folder = join(checkpoint, STATE_FOLDER)
    numbers = sorted(int(name) for name in files.names(folder) if name.isdigit())
    found = (_operator(files, join(folder, str(number)), epoch) for number in numbers)
    return tuple(operator for operator in found if operator is not None)


def _operator(files: FileSystem, folder: str, epoch: int | None) -> StateOperator | None:
    """Read one operator's folder; nothing if it was begun and never completed."""
    data = files.read(_metadata_path(files, folder, epoch))
    if data is None:
        return None
    try:
        said = json.loads(data.decode().partition("\n")[2])
        stores = said["stateStoreInfo"]
        properties = json.loads(said.get("operatorPropertiesJson") or "{}")
        kinds = {
            one["stateName"]: one["stateVariableType"]
            for one in properties.get("stateVariables", ())
        }
        variables = tuple(
            variable for store in stores for variable in _variables(files, folder, store, kinds)
        )
        info = said["operatorInfo"]
        partitions = max(store["numPartitions"] for store in stores)
        mode = properties.get("timeMode", "")
        return StateOperator(info["operatorId"], info["operatorName"], partitions, variables, mode)
    except (ValueError, KeyError, struct.error) as error:
        raise CheckpointProblem(
            f"{folder}: what Spark has written about this operator's state cannot be read: "
            f"{type(error).__name__}: {error}. Nothing was changed."
        ) from error


def _metadata_path(files: FileSystem, folder: str, epoch: int | None) -> str:
    """Return the newest file; ``transformWithState`` has one for each start that changed it."""
    epochs = [int(name) for name in files.names(join(folder, "_metadata", "v2")) if name.isdigit()]
    chosen = [one for one in epochs if epoch is None or one <= epoch] or epochs
    if not chosen:
        return join(folder, "_metadata", "metadata")
    return join(folder, "_metadata", "v2", str(max(chosen)))


def _variables(
    files: FileSystem, folder: str, store: dict[str, Any], kinds: dict[str, str]
) -> Iterator[Variable]:
    name = store["storeName"]
    paths = store.get("stateSchemaFilePaths")
    if paths:
        # Whole URIs, which lead elsewhere once a checkpoint has been moved.
        path = join(folder, "_stateSchema", name, paths[-1].rpartition("/")[2])
    else:
        path = join(folder, "0", *([] if name == DEFAULT_STORE else [name]), "_metadata", "schema")
    data = files.read(path)
    for variable in parse_schemas(data) if data is not None else ():
        if variable.name == DEFAULT_STORE and name != DEFAULT_STORE:
            variable = Variable(name, variable.key, variable.value)  # noqa: PLW2901
        yield Variable(
            variable.name,
            variable.key,
            variable.value,
            variable.user_key,
            kinds.get(variable.name, ""),
        )


def parse_schemas(data: bytes) -> list[Variable]:
    """Read a schema file of any of the versions that Spark writes."""
    reader = _JavaData(data)
    version = reader.utf()
    if version == "v1":
        return [Variable(DEFAULT_STORE, _struct(reader.utf()), _struct(reader.utf()))]
    if version == "v2":
        return [Variable(DEFAULT_STORE, _struct(reader.text()), _struct(reader.text()))]
    if version != "v3":
        raise ValueError(f"a state schema of version {version!r}")
    found = []
    for _ in range(reader.number(">i")):
        name = reader.utf()
        reader.number(">h")  # the ids of key and value schema
        key = _struct(reader.text())
        reader.number(">h")
        value = _struct(reader.text())
        reader.text()  # how keys are encoded
        user_key = reader.text()
        there = _struct(user_key) if json.loads(user_key) else None
        found.append(Variable(name, key, value, there))
    return found


def _struct(text: str) -> StructType:
    return StructType.fromJson(json.loads(text))


class _JavaData:
    """Reads what Java's ``DataOutputStream`` has written."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        value = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return int(value)

    def utf(self) -> str:
        length = self.number(">H")
        data = self._data[self._at : self._at + length]
        self._at += length
        # Java writes a NUL as two bytes, and characters beyond 16 bits as two surrogates.
        text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16")

    def text(self) -> str:
        """Read a text that was too long for one piece."""
        return "".join(self.utf() for _ in range(self.number(">i")))
