"""Custom aggregates, on the rows of a window as a pandas DataFrame."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.aggregates import Aggregate, Partial
from beadline.event_time.groups import Groups

AggregateTypes = str | Sequence[pa.DataType]
_NULLABLE: dict[pa.DataType, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
}


class CustomAggregate(Aggregate):
    """Base class of custom aggregates: ``add`` makes a partial of some rows, ``merge`` merges two.

    Merging must give the same result in any order and however the rows are divided; otherwise it
    depends on how Spark divides the source into epochs. A partial is a tuple of values of the types
    in ``state_type``. Integers and booleans in ``rows`` have pandas' nullable types. Code that
    computes other partials needs another ``version``: it is refused by a checkpoint that holds
    partials of the old one.

    >>> class Weighted(CustomAggregate):
    ...     state_type = "total double, weight double"
    ...     returns = "double"
    ...
    ...     def add(self, rows):
    ...         return (rows.price * rows.amount).sum(), rows.amount.sum()
    ...
    ...     def merge(self, one, other):
    ...         return one[0] + other[0], one[1] + other[1]
    ...
    ...     def result(self, partial):
    ...         return partial[0] / partial[1] if partial[1] else None
    """

    column = None
    state_type: ClassVar[AggregateTypes]  # DDL of the partial's columns, or their Arrow types
    returns: ClassVar[str | pa.DataType]  # the result's type, likewise
    version: ClassVar[int] = 1  # of the partials, by which a checkpoint notices changed code

    @property
    def kind(self) -> str:
        """The class, its fields if it is a dataclass, and its version."""
        return super().kind + (f"_v{self.version}" if self.version != 1 else "")

    @abstractmethod
    def add(self, rows: pd.DataFrame) -> Partial:
        """Return the partial of some rows of one window, which are sorted by time."""

    @abstractmethod
    def merge(self, one: Partial, other: Partial) -> Partial:
        """Merge two partials; the order must not matter."""

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The types of ``state_type``."""
        given = getattr(self, "state_type", None)
        if not given:
            raise BadQuery(
                f"{type(self).__name__} needs a state_type, the types of the values that add() "
                f"returns: state_type = 'total double, n bigint'. {NOTHING_WRITTEN}"
            )
        types = _of_ddl(given) if isinstance(given, str) else list(given)
        for type_ in types:
            if pa.types.is_temporal(type_):
                raise BadQuery(
                    f"{type(self).__name__}.state_type: {type_} would depend on a worker's time "
                    f"zone. Use a bigint, such as the microseconds since 1970. {NOTHING_WRITTEN}"
                )
        return types

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The type of ``returns``."""
        given = getattr(self, "returns", None)
        if given is None:
            raise BadQuery(
                f"{type(self).__name__} needs the type of the value that result() returns: "
                f"returns = 'double'. {NOTHING_WRITTEN}"
            )
        return _of_ddl(f"result {given}")[0] if isinstance(given, str) else given

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Call ``add`` for each group of rows."""
        # By default a null makes floats of a whole column: of rows of other keys, and in one epoch.
        frame = groups.table.to_pandas(types_mapper=_nullable_type)
        slices = zip(groups.starts.tolist(), groups.ends.tolist(), strict=True)
        return [self._checked(self.add(frame.iloc[start:end])) for start, end in slices]

    def _checked(self, partial: Partial) -> Partial:
        if not isinstance(partial, tuple):
            raise TypeError(
                f"{type(self).__name__}.add() returned a {type(partial).__name__}, not a tuple of "
                f"values of the types in state_type"
            )
        return tuple(None if value is pd.NA else value for value in partial)


def _nullable_type(type_: pa.DataType) -> Any:
    return _NULLABLE.get(type_)


def _of_ddl(ddl: str) -> list[pa.DataType]:
    """Return the Arrow types of a DDL string."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        spark_types = StructType.fromDDL(ddl)
        assert isinstance(spark_types, StructType)
        schema = to_arrow_schema(spark_types, timezone="UTC")
    except PySparkException as error:
        raise BadQuery(f"{ddl!r} is not a list of types: {error}. {NOTHING_WRITTEN}") from error
    assert schema is not None
    return list(schema.types)
