"""Approximate aggregates with little state: the number of distinct values, and quantiles.

Both are sketches that merge exactly: the state after the same rows is the same, byte for byte,
however they were divided into epochs. Later versions read the same state, so neither the hash nor
the buckets may ever change.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.aggregates import Aggregate, Partial, ordered_type, with_one_zero
from beadline.event_time.groups import Groups, Ints, plain

_Hashes = npt.NDArray[np.uint64]
_Ranks = npt.NDArray[np.uint8]
_SPARSE, _DENSE = b"s", b"d"


# -- distinct values


@dataclass(frozen=True)
class ApproxDistinct(Aggregate):
    """HyperLogLog: for each value of a hash's last bits, the largest number of leading zeros."""

    column: str
    bits: int  # 2 ** bits registers

    def ordered(self, column: pa.DataType | None) -> bool:
        """No."""
        return False

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The registers; only those that are not zero, as long as there are few."""
        ordered_type(self.column, column)
        return [pa.binary()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A bigint, as for Spark's approx_count_distinct."""
        return pa.int64()

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Hash every value once."""
        column = groups.column(self.column)
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        hashes = hashes_of(column.take(pa.array(there)))
        places = (hashes & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        rest = hashes >> np.uint64(self.bits)
        width = 64 - self.bits
        # frexp's exponent of a positive number is its length in bits. A float keeps only 53 bits,
        # so a rounding up to the next power of two is undone.
        length = np.frexp(rest.astype(np.float64))[1].astype(np.int64)
        rounded = (length > 0) & ((rest >> np.maximum(length - 1, 0).astype(np.uint64)) == 0)
        ranks = width - (length - rounded) + 1
        owners = groups.numbers[there]
        code = (owners << self.bits) | places
        order = np.lexsort((ranks, code))
        last = np.append(code[order][1:] != code[order][:-1], True) if len(order) else order
        kept = order[last] if len(order) else order
        cuts = np.searchsorted(owners[kept], np.arange(1, len(groups)))
        pairs = zip(np.split(places[kept], cuts), np.split(ranks[kept], cuts), strict=True)
        return [(self._packed(at, rank.astype(np.uint8)),) for at, rank in pairs]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Take the larger of each register."""
        registers = self._registers(one[0])
        np.maximum(registers, self._registers(other[0]), out=registers)
        at = np.flatnonzero(registers)
        return (self._packed(at, registers[at]),)

    def result(self, partial: Partial) -> Any:
        """Estimate with Ertl's formula, which needs no correction tables."""
        counts = np.bincount(self._registers(partial[0]), minlength=66 - self.bits).tolist()
        return _estimate(counts, self.bits)

    def _packed(self, places: Ints, ranks: _Ranks) -> bytes:
        """Return registers as bytes; the same registers always give the same bytes."""
        if len(places) * 4 < 1 << self.bits:
            words = (places.astype("<u4") << np.uint32(8)) | ranks
            return _SPARSE + bytes(words.astype("<u4").tobytes())
        registers = np.zeros(1 << self.bits, dtype=np.uint8)
        registers[places] = ranks
        return _DENSE + bytes(registers.tobytes())

    def _registers(self, packed: bytes) -> _Ranks:
        kind, rest = bytes(packed[:1]), bytes(packed[1:])
        registers = np.zeros(1 << self.bits, dtype=np.uint8)
        if kind == _DENSE:
            registers[:] = np.frombuffer(rest, dtype=np.uint8)
            return registers
        words = np.frombuffer(rest, dtype="<u4")
        registers[words >> np.uint32(8)] = (words & np.uint32(255)).astype(np.uint8)
        return registers


def _estimate(counts: Sequence[int], bits: int) -> int:
    """Return the estimated number of distinct hashes, given how many registers have each rank.

    Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches", algorithm 6.
    """
    registers, width = 1 << bits, 64 - bits
    if counts[0] == registers:
        return 0
    total = registers * _tau(1 - counts[width + 1] / registers)
    for rank in range(width, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += registers * _sigma(counts[0] / registers)
    return round(registers * registers / (2 * math.log(2)) / total)


def _sigma(x: float) -> float:
    y, total, last = 1.0, x, -1.0
    while total != last:
        last = total
        x *= x
        total += x * y
        y += y
    return total


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, total, last = 1.0, 1 - x, -1.0
    while total != last:
        last = total
        x = math.sqrt(x)
        y *= 0.5
        total -= (1 - x) ** 2 * y
    return total / 3


def hashes_of(column: pa.Array) -> _Hashes:
    """Return a 64-bit hash for each value: the same in every version and on every machine."""
    column = with_one_zero(plain(column))
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return _mixed(numbers.astype(np.int64).view(np.uint64))
    if pa.types.is_floating(column.type):
        floats = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return _mixed(np.where(np.isnan(floats), np.nan, floats).view(np.uint64))
    encoded = column.dictionary_encode()
    found = [_hash(value) for value in encoded.dictionary.to_pylist()]
    hashes: _Hashes = np.array(found, dtype=np.uint64)
    return np.asarray(hashes[encoded.indices.to_numpy(zero_copy_only=False)], dtype=np.uint64)


def _mixed(words: _Hashes) -> _Hashes:
    """Spread numbers over all 64 bits, as splitmix64 does."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)), dtype=np.uint64)


def _hash(value: Any) -> int:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


# -- quantiles

# The offset of the buckets of either sign: larger than any power that is needed.
_OFFSET = 2**28
_INFINITE, _NAN = 2**30, 2**30 + 1
_LARGEST_POWER = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Quantiles(Aggregate):
    """DDSketch: the number of values between adjacent powers of a number a little larger than 1.

    Bucket numbers increase with the values: negative for negative values, 0 for zero. NaN has the
    last bucket, since Spark sorts it after all numbers.
    """

    shown_by = ("at",)
    column: str
    at: tuple[float, ...]
    error: float

    def ordered(self, column: pa.DataType | None) -> bool:
        """No."""
        return False

    @property
    def _log_base(self) -> float:
        return math.log1p(2 * self.error / (1 - self.error))

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The buckets, the number of values in each, and the smallest and largest value."""
        assert column is not None
        numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        if not any(is_a(column) for is_a in numeric):
            raise BadQuery(
                f"column {self.column!r} is of type {column}, and quantiles need numbers. Cast it "
                f"to double. {NOTHING_WRITTEN}"
            )
        return [pa.binary(), pa.binary(), pa.float64(), pa.float64()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """An array with a double for each requested quantile."""
        return pa.list_(pa.float64())

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Count the values of each bucket."""
        column = groups.column(self.column)
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        values = column.take(pa.array(there)).cast(pa.float64()).to_numpy(zero_copy_only=False)
        owners, buckets = groups.numbers[there], self._buckets(values)
        order = np.lexsort((buckets, owners))
        owners, buckets, values = owners[order], buckets[order], values[order]
        cuts = np.searchsorted(owners, np.arange(1, len(groups)))
        found: list[Partial] = []
        for mine, own in zip(np.split(buckets, cuts), np.split(values, cuts), strict=True):
            numbers, counts = np.unique(mine, return_counts=True)
            finite = own[np.isfinite(own)] + 0.0  # -0.0 is 0.0, whichever came first
            ends = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
            found.append((_bytes(numbers, "<i4"), _bytes(counts, "<i8"), *ends))
        return found

    def _buckets(self, values: npt.NDArray[np.float64]) -> Ints:
        sizes = np.abs(values)
        plain_number = np.isfinite(values) & (sizes > 0)
        powers = np.ceil(np.log(np.where(plain_number, sizes, 1.0)) / self._log_base)
        signed = np.where(values < 0, -1, 1)
        buckets = np.where(plain_number, signed * (powers.astype(np.int64) + _OFFSET), 0)
        buckets = np.where(np.isinf(values), signed * _INFINITE, buckets)
        return np.where(np.isnan(values), _NAN, buckets)

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add the counts, bucket by bucket."""
        numbers = np.concatenate([_numbers(part[0], "<i4") for part in (one, other)])
        counts = np.concatenate([_numbers(part[1], "<i8") for part in (one, other)])
        merged, where = np.unique(numbers, return_inverse=True)
        total = np.zeros(len(merged), dtype=np.int64)
        np.add.at(total, where, counts)
        low = min((end for end in (one[2], other[2]) if end is not None), default=None)
        high = max((end for end in (one[3], other[3]) if end is not None), default=None)
        return _bytes(merged, "<i4"), _bytes(total, "<i8"), low, high

    def result(self, partial: Partial) -> Any:
        """Find the bucket of each rank; null if there are no values."""
        numbers, counts = _numbers(partial[0], "<i4"), _numbers(partial[1], "<i8")
        if not len(numbers):
            return None
        upto = np.cumsum(counts)
        ranks = np.floor(np.array(self.at) * (int(upto[-1]) - 1))
        found = np.searchsorted(upto, ranks, side="right")
        return [self._value(int(numbers[at]), partial[2], partial[3]) for at in found]

    def _value(self, bucket: int, low: float, high: float) -> float:
        """Return the number with the smallest relative error for all values of a bucket."""
        if bucket == 0 or abs(bucket) >= _INFINITE:
            return {0: 0.0, _NAN: math.nan}.get(bucket, math.copysign(math.inf, bucket))
        power = (abs(bucket) - _OFFSET) * self._log_base + math.log1p(-self.error)
        middle = math.exp(min(power, _LARGEST_POWER))
        return min(max(math.copysign(middle, bucket), low), high)


def _bytes(numbers: Ints, kind: str) -> bytes:
    return numbers.astype(kind).tobytes()


def _numbers(packed: bytes, kind: str) -> Ints:
    return np.frombuffer(bytes(packed), dtype=kind).astype(np.int64)


# -- public functions


def approx_distinct(column: str, error: float = 0.02) -> Aggregate:
    """Count the distinct values of a column, without nulls; ``error`` is the standard error."""
    if not 0.004 <= error <= 0.3:
        raise BadQuery(
            f"approx_distinct({column!r}, error={error!r}): it must be from 0.004 to 0.3. "
            f"{NOTHING_WRITTEN}"
        )
    return ApproxDistinct(column, max(4, math.ceil(2 * math.log2(1.04 / error))))


def quantiles(column: str, at: Sequence[float] | float, error: float = 0.01) -> Aggregate:
    """Return quantiles of a column, as an array of doubles: ``quantiles("ms", [0.5, 0.99])``.

    The relative error of each against the value of that rank is at most ``error``, however large or
    small the values are. The value of rank 0.5 among four is the second.
    """
    asked = (at,) if isinstance(at, int | float) else tuple(at)
    if not asked or not all(isinstance(one, int | float) and 0 <= one <= 1 for one in asked):
        raise BadQuery(
            f"quantiles({column!r}, {at!r}): it takes numbers from 0 to 1, such as [0.5, 0.99]. "
            f"{NOTHING_WRITTEN}"
        )
    if not 0.00001 <= error <= 0.5:
        raise BadQuery(
            f"quantiles({column!r}, error={error!r}): it must be from 0.00001 to 0.5. "
            f"{NOTHING_WRITTEN}"
        )
    return Quantiles(column, tuple(float(one) for one in asked), error)
