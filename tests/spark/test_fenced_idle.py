"""A driver to which no rows come learns of a newer start all the same, and ends as fenced."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.decisions import DecisionLog, FileStore
from beadline.decisions.store import LOG_FOLDER
from beadline.errors import Fenced
from beadline.files import join, open_files
from beadline.sinks import FileSink


def test_an_idle_driver_ends_when_a_newer_one_has_claimed(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    stream = exactly_once(frame, "idle").to(FileSink(str(tmp_path / "out")))
    query = stream.start(str(tmp_path / "checkpoint"))
    (tmp_path / "in/0.json").write_text('{"id": 1}\n')
    query.processAllAvailable()
    checkpoint = (tmp_path / "checkpoint").as_uri().replace("file://", "file:")
    log = DecisionLog(FileStore(open_files(checkpoint), join(checkpoint, LOG_FOLDER)))
    before = log.open().claim
    assert before is not None
    assert log.state.decision is not None
    assert log.state.decision.epoch == 0
    log.append(replace(before, nonce=uuid.uuid4().hex, generation=before.generation + 1))
    # Not that nothing was: epoch 0 is committed.
    with pytest.raises(Fenced, match=r"newer start.*Nothing more is committed by this one\."):
        query.awaitTermination(60)
    assert not query.isActive
    assert isinstance(query.exception(), Fenced)
    query.stop()
