"""Jars, fetched once through `mvn` into a cache folder: Spark's connectors, and test servers.

Through `mvn` and not by hand, because companies put mirrors, proxies and passwords into Maven's own
settings, and only Maven knows them all. A bundle appears in the cache by one rename, so its folder
is always complete; a lock file keeps two processes from downloading the same jars, and from writing
Maven's local repository at the same time, which Maven does not support.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from beadline.environment.java import run_program
from beadline.errors import JarsUnavailable

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_FETCH_TIMEOUT_S = 900


@dataclass(frozen=True)
class Bundle:
    """Jars that go together into one folder of the cache.

    `transitive` asks Maven for everything the artifacts need. Without it, exactly the artifacts are
    fetched: Spark's parent POM names a repository that cannot be reached everywhere, and resolving
    through it fails. `without` names jars (by a pattern on the file name) that must not be there.
    """

    name: str
    artifacts: tuple[str, ...]  # "group:artifact:version"
    transitive: bool = True
    without: tuple[str, ...] = ()


def cache_folder() -> Path:
    """`BEADLINE_CACHE`, or `~/.cache/beadline`."""
    configured = os.environ.get("BEADLINE_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "beadline"


def cached(bundle: Bundle) -> Path | None:
    """The folder that holds the bundle's jars, or None if they were never fetched."""
    folder = _folder(bundle)
    return folder if folder.is_dir() else None


def jars(bundle: Bundle) -> Path:
    """The folder that holds the bundle's jars; fetches them if this is the first time.

    Raises `JarsUnavailable`, with the reason, if they are not in the cache and cannot be fetched.
    """
    target = _folder(bundle)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / ".lock"):
            if not target.is_dir():  # another process may have fetched it while this one waited
                _fetch(bundle, target)
    except OSError as error:
        raise JarsUnavailable(f"jars of {bundle.name}: cannot write {target}: {error}") from error
    return target


def _fetch(bundle: Bundle, target: Path) -> None:
    """Fetch next to the target, on the same file system, then rename."""
    work = Path(tempfile.mkdtemp(prefix=f".{bundle.name}-", dir=target.parent))
    try:
        (work / "pom.xml").write_text(_pom(bundle), encoding="utf-8")
        fetched = work / "jars"
        _run_maven(bundle, work, fetched)
        for pattern in bundle.without:
            for jar in fetched.glob(pattern):
                jar.unlink()
        fetched.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_maven(bundle: Bundle, work: Path, fetched: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailable(
            f"jars of {bundle.name} are not in {cache_folder()} and `mvn` is not on the PATH: "
            "install Maven, or set BEADLINE_CACHE to a folder that holds them"
        )
    goal = "copy-dependencies" if bundle.transitive else "copy"
    command = [maven, "--batch-mode", "--no-transfer-progress", "--file", str(work / "pom.xml")]
    command += [f"{DEPENDENCY_PLUGIN}:{goal}", f"-DoutputDirectory={fetched}"]
    if bundle.transitive:
        command.append("-DincludeScope=runtime")
    try:
        done = run_program(command, _FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailable(
            f"jars of {bundle.name}: mvn did not finish in {_FETCH_TIMEOUT_S} s"
        ) from error
    if done.returncode != 0:
        raise JarsUnavailable(
            f"jars of {bundle.name}: mvn failed with exit code {done.returncode}:\n"
            + _reason(done.stdout)
        )
    if not any(fetched.glob("*.jar")):
        raise JarsUnavailable(f"jars of {bundle.name}: mvn succeeded and brought no jar")


def _reason(output: str) -> str:
    """Maven prints the reason in its [ERROR] lines, followed by a page of help."""
    lines = output.splitlines()
    errors = [line for line in lines if line.startswith("[ERROR] ") and line.strip() != "[ERROR]"]
    return "\n".join(errors[:3] or lines[-12:])


def _pom(bundle: Bundle) -> str:
    tag = "dependency" if bundle.transitive else "artifactItem"
    entries = "\n".join(_entry(coordinate, tag) for coordinate in bundle.artifacts)
    if bundle.transitive:
        body = f"<dependencies>\n{entries}\n</dependencies>"
    else:
        group, artifact, version = DEPENDENCY_PLUGIN.split(":")
        body = (
            f"<build><plugins><plugin><groupId>{group}</groupId>"
            f"<artifactId>{artifact}</artifactId><version>{version}</version>"
            f"<configuration><artifactItems>\n{entries}\n</artifactItems></configuration>"
            "</plugin></plugins></build>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>beadline</groupId>"
        f"<artifactId>{escape(bundle.name)}</artifactId><version>1</version>"
        f"<packaging>pom</packaging>\n{body}\n</project>\n"
    )


def _entry(coordinate: str, tag: str) -> str:
    group, artifact, version = map(escape, coordinate.split(":"))
    return (
        f"<{tag}><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></{tag}>"
    )


def _folder(bundle: Bundle) -> Path:
    """A changed pin is a new folder: a stale cache cannot be mistaken for the new list."""
    fingerprint = hashlib.sha256(f"{_pom(bundle)}{bundle.without}".encode()).hexdigest()[:12]
    return cache_folder() / "jars" / f"{bundle.name}-{fingerprint}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel releases it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
