"""What Hadoop's client raises leaves ``files`` as the error that a local disk would raise."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from beadline.files.hadoop import HadoopFiles, _as_os_error

_REMOTE = "org.apache.hadoop.ipc.RemoteException"
_TEXT = "this is why\n\tat org.apache.hadoop.Somewhere"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.apache.hadoop.security.AccessControlException", PermissionError),
        ("org.apache.hadoop.security.authorize.AuthorizationException", PermissionError),
        ("java.net.ConnectException", ConnectionError),
        ("java.net.SocketTimeoutException", ConnectionError),
        ("org.apache.hadoop.ipc.StandbyException", ConnectionError),
        ("org.apache.hadoop.ipc.RetriableException", ConnectionError),
        ("java.io.FileNotFoundException", FileNotFoundError),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", FileExistsError),
        ("java.io.IOException", OSError),
    ],
)
@pytest.mark.parametrize("how", ["itself", "remote", "cause"])
def test_each_class_of_java_has_its_own(
    spark: SparkSession, name: str, kind: type[OSError], how: str
) -> None:
    """Also as the NameNode sends it, and below another that says less."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    thrown = getattr(jvm, name)(_TEXT)
    if how == "remote":
        thrown = getattr(jvm, _REMOTE)(name, _TEXT)
    elif how == "cause":
        thrown = jvm.java.io.IOException("this is why: on a call", thrown)
    found = _as_os_error(Py4JJavaError("", thrown))
    assert type(found) is kind
    assert "this is why" in str(found)
    assert "\n" not in str(found)


def test_safe_mode_and_a_quota_are_no_fault_of_the_rows(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    safe = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
    error = _as_os_error(Py4JJavaError("", getattr(jvm, _REMOTE)(safe, "Name node is in safe")))
    assert type(error) is ConnectionError
    for word in ("NSQuota", "DSQuota", "FSLimitException$MaxDirectoryItems"):
        quota = f"org.apache.hadoop.hdfs.protocol.{word}ExceededException"
        error = _as_os_error(Py4JJavaError("", getattr(jvm, _REMOTE)(quota, "The quota is over")))
        assert error.errno == errno.EDQUOT
    long = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"
    error = _as_os_error(Py4JJavaError("", getattr(jvm, _REMOTE)(long, "of the epoch itself")))
    assert error.errno is None


def test_methods_raise_no_java_stack(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    files = HadoopFiles(f"file:{tmp_path}")
    for act in (files.make_folder, files.make_child):
        with pytest.raises(OSError, match="not a dir") as raised:
            act(f"file:{tmp_path}/file/below")
        assert raised.value.__cause__ is None
        assert "\n" not in str(raised.value)
    with pytest.raises(OSError, match="not a dir"):
        files.write(f"file:{tmp_path}/file/below", b"")
