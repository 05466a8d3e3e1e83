"""The jars that Spark's own connectors need: which, from where, and whether a session has them.

Which versions go together is data, in `CONNECTORS`, and nowhere else. `session(connectors=...)`
puts the jars on the class path of the Spark that it starts. For a session of your own, ask for the
value of one setting::

    from beadline.environment.jars import spark_jars

    SparkSession.builder.config("spark.jars", spark_jars("kafka"))

Spark's own download (`spark.jars.packages`) is second choice: its Ivy knows nothing of the mirrors
and passwords in Maven's settings. It is used if there is no `mvn`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.environment import maven
from beadline.environment.maven import Bundle
from beadline.errors import BadSetting, JarsUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = "spark.jars"
PACKAGES = "spark.jars.packages"
_SEPARATOR = re.compile(r"\s*[=:]\s*|\s+")  # of a key and its value in `spark-defaults.conf`


@dataclass(frozen=True)
class Connector:
    """One connector of Spark's; ``{spark}`` stands for the version of the running PySpark.

    ``choices`` are sets of artifacts, each complete, tried in order. ``package`` is the coordinate
    for Spark's own download, which resolves the rest. ``classes`` names one class of each jar, to
    check that a session has them.
    """

    package: str
    choices: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]

    def brought(self, settings: Mapping[str, str]) -> bool:
        """Whether users bring the connector themselves, in a version of their choice."""
        artifact = self.package.split(":")[1].rpartition("_")[0]
        return any(artifact in settings.get(key, "") for key in (JARS, PACKAGES))


_SPARK_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:"
_CLIENTS = ("org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.12.1")

CONNECTORS: Mapping[str, Connector] = {
    "kafka": Connector(
        package=_SPARK_KAFKA,
        choices=(
            # All jars should have one version, but some mirrors have only the oldest token
            # provider. What the connector calls in it has not changed since: 4.0.0 is tested with
            # 4.2.0.
            (_SPARK_KAFKA, _TOKENS + "{spark}", *_CLIENTS),
            (_SPARK_KAFKA, _TOKENS + "4.0.0", *_CLIENTS),
        ),
        classes=(
            "org.apache.spark.sql.kafka010.KafkaSourceProvider",
            "org.apache.spark.kafka010.KafkaConfigUpdater",
            "org.apache.kafka.clients.consumer.KafkaConsumer",
            "org.apache.commons.pool2.impl.GenericKeyedObjectPool",
        ),
    ),
}


def spark_jars(name: str) -> str:
    """Return the value of `spark.jars` for a connector, such as "kafka"; fetches what is missing.

    Raises `JarsUnavailable`, with what to do instead, if the jars are not in the cache and cannot
    be fetched.
    """
    folder = cached(name) or _fetch(name)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def spark_packages(name: str) -> str:
    """Return the value of `spark.jars.packages` for a connector."""
    return connector(name).package.format(spark=spark_version())


def cached(name: str) -> Path | None:
    """Return the folder with the jars of a connector, if they have been fetched before.

    Any choice will do: otherwise a mirror without the first one would be asked at each start.
    """
    return next(filter(None, map(maven.cached, bundles(name, spark_version()))), None)


def bundles(name: str, spark: str) -> tuple[Bundle, ...]:
    """Return what to fetch for a connector and a version of Spark; any one of them is enough."""
    return tuple(
        Bundle(f"spark-{name}-{spark}", tuple(text.format(spark=spark) for text in choice), False)
        for choice in connector(name).choices
    )


def connector(name: str) -> Connector:
    """Return a connector by its name."""
    if name not in CONNECTORS:
        known = ", ".join(map(repr, CONNECTORS))
        raise BadSetting(f"there is no Spark connector {name!r}; known: {known}")
    return CONNECTORS[name]


def spark_version() -> str:
    """Return the version of PySpark; a Spark of one's own may have no package metadata."""
    from pyspark.version import __version__

    return __version__


def with_connectors(settings: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the settings with the connectors' jars added, for a JVM that has not started yet."""
    result = dict(settings)
    for name in names:
        if connector(name).brought(result):
            continue
        if shutil.which("mvn") is None and cached(name) is None:
            key, value = PACKAGES, spark_packages(name)
        else:
            key, value = JARS, spark_jars(name)
        # Settings given when the JVM starts replace those in the file.
        before = result.get(key) or _from_defaults_file(key)
        result[key] = ",".join(filter(None, [before, value]))
    return result


def require_connector(spark: SparkSession, name: str) -> None:
    """Raise `JarsUnavailable` unless this session can load every jar of a connector."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    utils = jvm.org.apache.spark.util.Utils
    absent = [each for each in connector(name).classes if not utils.classIsLoadable(each)]
    if not absent:
        return
    raise JarsUnavailable(
        f"This Spark was started without its {name} connector, or with an incomplete one ("
        f"{', '.join(absent)} cannot be loaded), and jars cannot be added to a running Spark. "
        f'Start Spark in this process with session("...", connectors=("{name}",)) of '
        "beadline.environment.session; or set spark.jars of your own session to "
        f'beadline.environment.jars.spark_jars("{name}"); or give spark-submit --packages '
        f"{spark_packages(name)}. Nothing was written."
    )


def _fetch(name: str) -> Path:
    """Fetch the first choice that is available."""
    reasons: list[str] = []
    for bundle in bundles(name, spark_version()):
        try:
            return maven.jars(bundle)
        except JarsUnavailable as error:
            if str(error) not in reasons:
                reasons.append(str(error))
    raise JarsUnavailable(
        "\n".join(reasons)
        + f"\nOr let Spark fetch them: set spark.jars.packages to {spark_packages(name)}. "
        "Nothing was written."
    )


def _from_defaults_file(key: str) -> str | None:
    """Return the value of a setting in `spark-defaults.conf`, before there is a JVM to ask.

    It reads the file that Spark would read, in Spark's own format.
    """
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"))
    try:
        lines = (folder / "spark-defaults.conf").read_text("utf-8").splitlines()
    except OSError:
        return None
    found = None
    for line in lines:
        word, *value = _SEPARATOR.split(line.strip(), maxsplit=1)
        if word == key and value:
            found = value[0]
    return found
