"""Two names of one folder, and a copy, which is another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from beadline.decisions import DecisionLog
from beadline.errors import WrongCheckpoint
from beadline.files import qualify, same_folder
from beadline.ids import QueryId
from beadline.transactions.status import read_log_status
from tests.unit.logs import claim, on_disk


def test_a_link_is_the_same_and_a_copy_is_not(tmp_path: Path) -> None:
    real, link, copy = tmp_path / "disk" / "orders", tmp_path / "link", tmp_path / "copy"
    real.mkdir(parents=True)
    link.symlink_to(tmp_path / "disk")
    shutil.copytree(real, copy)
    one, linked, other = qualify(real), qualify(link / "orders"), qualify(copy)
    assert linked != one
    assert same_folder(one, one)
    assert same_folder(one, linked)
    assert same_folder(linked, one)
    assert not same_folder(one, other)
    assert not same_folder(linked, other)


def test_elsewhere_only_the_name_counts() -> None:
    assert same_folder("hdfs://a/x", "hdfs://a/x")
    assert not same_folder("hdfs://a/x", "hdfs://b/x")
    assert not same_folder("hdfs:///x", "file:/x")


def test_transactions_are_ended_by_a_linked_checkpoint_and_not_by_a_copy(tmp_path: Path) -> None:
    real, link, copy = tmp_path / "orders", tmp_path / "link", tmp_path / "copy"
    log = DecisionLog(on_disk(real / "beadline"))
    log.open()
    log.append(replace(claim(log), query=QueryId("orders", "0" * 32, qualify(real))))
    link.symlink_to(real)
    shutil.copytree(real, copy)
    read_log_status(str(real)).check_place()
    read_log_status(str(link)).check_place()
    with pytest.raises(WrongCheckpoint, match="it is a copy"):
        read_log_status(str(copy)).check_place()
