"""Two names of one folder, and a copy, which is another."""

from __future__ import annotations

import shutil
from pathlib import Path

from beadline.files import qualify, same_folder


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
