"""Every other file system, through the Hadoop client that comes with Spark.

Calls go through PySpark's gateway to the JVM. Only ``hdfs:`` has a create-if-absent that is tested
to have one winner here: a temporary file, synced, and renamed without overwrite. Everything else
is refused for exactly-once.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from py4j.protocol import Py4JJavaError

from beadline.errors import BadSetting
from beadline.files.base import CREATE_TRIES_MAX, TEMPORARY, FileSystem, FoundFile, split_uri
from beadline.points import reach

# The client sleeps 400 ms, and then longer, until the NameNode has heard of a closed block; on a
# small file that is nearly all of its time. And after a NameNode's restart it should ask again
# rather than fail at once.
CLIENT = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "2",
    "dfs.client.block.write.locateFollowingBlock.retries": "13",
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "200,100",
    # Each of those hundred tries would try ten times by itself, a second apart: a quarter of an
    # hour for a NameNode that is not there.
    "ipc.client.connect.max.retries": "0",
    "ipc.client.connect.max.retries.on.timeouts": "1",
}
# A caller that only looks, and has no query to continue, waits some seconds.
_IMPATIENT = {"dfs.client.retry.policy.spec": "200,2"}
_ABSENT = "java.io.FileNotFoundException"
_TAKEN = "org.apache.hadoop.fs.FileAlreadyExistsException"
_REMOTE = "org.apache.hadoop.ipc.RemoteException"
# Errors of Hadoop's client and of the NameNode, by the last words of their classes' names.
_KINDS: dict[type[OSError], tuple[str, ...]] = {
    PermissionError: (
        *("AccessControlException", "AuthorizationException", "KerberosAuthException"),
        *("InvalidToken", "SaslException", "LoginException", "GSSException"),
    ),
    ConnectionError: (
        *("ConnectException", "ConnectTimeoutException", "SocketTimeoutException"),
        *("SocketException", "NoRouteToHostException", "UnknownHostException", "EOFException"),
        *("ClosedChannelException", "StandbyException", "RetriableException", "SafeModeException"),
    ),
    FileNotFoundError: ("FileNotFoundException",),
    FileExistsError: ("FileAlreadyExistsException",),
}
_QUOTAS = ("QuotaExceededException", "MaxDirectoryItemsExceededException")
P = ParamSpec("P")
R = TypeVar("R")


def is_running() -> bool:
    """Whether there is a JVM to ask, without starting one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def qualify(path: str) -> str:
    """Return the URI that Spark would give a plain path."""
    jvm, configuration = _gateway()
    folder = jvm.org.apache.hadoop.fs.Path(path)
    uri = str(folder.getFileSystem(configuration).makeQualified(folder).toString())
    return "file:" + split_uri(uri)[1] if uri.startswith("file:") else uri


def _gateway() -> tuple[Any, Any]:
    """Return the JVM and a configuration; the JVM is started if need be."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        from beadline.environment.java import require_java

        require_java()
        SparkContext._ensure_initialized()
        jvm = SparkContext._jvm
        assert jvm is not None
        return jvm, jvm.org.apache.hadoop.conf.Configuration()
    jvm = context._jvm
    return jvm, context._jsc.hadoopConfiguration()


def _java_class(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def _as_os_error(error: Py4JJavaError) -> OSError:
    """Return the error that a local disk would raise, without the Java stack.

    The protocol tells a NameNode that is away, or refuses the user, from a file that is wrong.
    """
    java: Any = error.java_exception
    text = str(java.toString()).splitlines()[0]
    while java is not None:
        name = str(java.getClass().getName())
        if name == _REMOTE:
            name = str(java.getClassName())
        for kind, names in _KINDS.items():
            if name.endswith(names):
                return kind(text)
        if name.endswith(_QUOTAS):
            return OSError(errno.EDQUOT, text)
        java = java.getCause()
    return OSError(text)


def _with_os_errors(
    act: Callable[Concatenate[HadoopFiles, P], R],
) -> Callable[Concatenate[HadoopFiles, P], R]:
    """Let a method raise what a method of ``LocalFiles`` would raise."""

    @wraps(act)
    def call(self: HadoopFiles, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(self, *args, **kwargs)
        except Py4JJavaError as error:
            raise _as_os_error(error) from None

    return call


class HadoopFiles(FileSystem):
    """One Hadoop file system. It is cheap to make, and does not travel between processes."""

    def __init__(self, uri: str, *, patient: bool = True) -> None:
        """Connect to the file system of ``uri``; raise if Spark has no classes for it."""
        from pyspark import SparkContext

        jvm, configuration = _gateway()
        self._jvm = jvm
        self._fs = jvm.org.apache.hadoop.fs
        copy = jvm.org.apache.hadoop.conf.Configuration(configuration)
        for key, value in (CLIENT if patient else CLIENT | _IMPATIENT).items():
            copy.set(key, value)
        try:
            self._context = self._fs.FileContext.getFileContext(jvm.java.net.URI(uri), copy)
        except Py4JJavaError as error:
            why = str(error.java_exception).splitlines()[0]
            raise BadSetting(
                f"{uri}: Spark has no file system for it: {why}. Give Spark the jars of that file "
                "system (spark.jars.packages, for the beadline command in spark-defaults.conf; for "
                "s3a: org.apache.hadoop:hadoop-aws in the version of Spark's own Hadoop), or use a "
                "local disk or hdfs:. Nothing was written."
            ) from None
        self._util = self._context.util()
        gateway = SparkContext._gateway
        assert gateway is not None
        self._parents = gateway.new_array(self._fs.Options.CreateOpts, 1)
        self._parents[0] = self._fs.Options.CreateOpts.createParent()
        self._no_overwrite = gateway.new_array(self._fs.Options.Rename, 0)
        self._overwrite = gateway.new_array(self._fs.Options.Rename, 1)
        self._overwrite[0] = self._fs.Options.Rename.OVERWRITE

    @_with_os_errors
    def create_exclusive(self, uri: str, data: bytes) -> bool:
        """Temporary file, synced to disk, renamed without overwrite."""
        folder, _, name = uri.rpartition("/")
        tries = 0
        while True:
            tries += 1
            temporary = f"{folder}/{TEMPORARY}{name}-{uuid.uuid4().hex}"
            self._create(temporary, data)
            reach("append.written")
            try:
                self._context.rename(self._path(temporary), self._path(uri), self._no_overwrite)
            except Py4JJavaError as error:
                kind = _java_class(error)
                if kind == _ABSENT and tries < CREATE_TRIES_MAX:
                    continue  # another process has tidied up
                if kind != _TAKEN:
                    raise
                self.delete(temporary)
                return False
            reach("append.linked")
            return True

    @_with_os_errors
    def write(self, uri: str, data: bytes) -> None:
        """Write beside it and rename over it."""
        temporary = f"{uri.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
        self._create(temporary, data)
        self._context.rename(self._path(temporary), self._path(uri), self._overwrite)

    @_with_os_errors
    def read(self, uri: str) -> bytes | None:
        """Return the content, or None if there is no such file."""
        try:
            stream = self._context.open(self._path(uri))
        except Py4JJavaError as error:
            if _java_class(error) == _ABSENT:
                return None
            raise
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    @_with_os_errors
    def names(self, uri: str) -> list[str]:
        """Return the names in a folder, in one call: entry by entry is slow over the gateway."""
        folder = self._path(uri)
        try:
            statuses = self._util.listStatus(folder)
        except Py4JJavaError as error:
            if _java_class(error) == _ABSENT:
                return []
            raise
        paths = self._fs.FileUtil.stat2Paths(statuses)
        text = str(self._jvm.org.apache.commons.lang3.ArrayUtils.toString(paths))[1:-1]
        prefix = self._context.makeQualified(folder).toString().rstrip("/") + "/"
        return text.removeprefix(prefix).split(f",{prefix}") if text else []

    @_with_os_errors
    def walk(self, uri: str) -> list[FoundFile]:
        """Return every file below a folder; a folder that vanishes meanwhile is listed again."""
        while self.exists(uri):
            try:
                return self._walk(uri)
            except Py4JJavaError as error:
                if _java_class(error) != _ABSENT:
                    raise
        return []

    def _walk(self, uri: str) -> list[FoundFile]:
        top = self._context.makeQualified(self._path(uri)).toString().rstrip("/") + "/"
        found = []
        files = self._util.listFiles(self._path(uri), True)
        while files.hasNext():
            status = files.next()
            path = status.getPath().toString().removeprefix(top)
            found.append(FoundFile(path, int(status.getLen())))
        return found

    @_with_os_errors
    def exists(self, uri: str) -> bool:
        """Whether a file or folder is there."""
        return bool(self._util.exists(self._path(uri)))

    @_with_os_errors
    def make_folder(self, uri: str) -> None:
        """Make a folder and its parents; no error if it is there."""
        self._context.mkdir(self._path(uri), None, True)

    @_with_os_errors
    def make_child(self, uri: str) -> bool:
        """Make a folder, but none of its parents."""
        try:
            self._context.mkdir(self._path(uri), None, False)
        except Py4JJavaError as error:
            if _java_class(error) == _ABSENT:
                return False
            if _java_class(error) != _TAKEN:
                raise
        return True

    @_with_os_errors
    def rename(self, source: str, target: str) -> bool:
        """Rename without overwrite; a source that is gone was renamed by another process."""
        try:
            self._context.rename(self._path(source), self._path(target), self._no_overwrite)
        except Py4JJavaError as error:
            if _java_class(error) in (_ABSENT, _TAKEN):
                return False
            raise
        return True

    @_with_os_errors
    def delete(self, uri: str) -> None:
        """Delete a file or a whole folder; no error if it is not there."""
        self._context.delete(self._path(uri), True)

    def sync_files(self, uri: str, paths: list[str]) -> None:
        """Nothing to do: a closed file is with every DataNode of its pipeline."""

    def sync_folder(self, uri: str) -> None:
        """Nothing to do: the NameNode's journal is synced before it answers."""

    def same_volume(self, one: str, other: str) -> bool:
        """One Hadoop file system is one volume."""
        return split_uri(one)[0] == split_uri(other)[0]

    def _path(self, uri: str) -> Any:
        return self._fs.Path(uri)

    def _create(self, uri: str, data: bytes) -> None:
        flag = self._fs.CreateFlag
        flags = self._jvm.java.util.EnumSet.of(flag.CREATE, flag.SYNC_BLOCK)
        stream = self._context.create(self._path(uri), flags, self._parents)
        try:
            stream.write(data)
        finally:
            stream.close()
