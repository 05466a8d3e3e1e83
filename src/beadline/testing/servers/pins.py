"""Every version that the test servers run, and nothing else: to change one, change it here.

Only what is asked for by name is pinned; what those need (`transitive`) follows from their own
POMs, which never change once published.
"""

from __future__ import annotations

from dataclasses import dataclass

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


@dataclass(frozen=True)
class Bundle:
    """Jars that go together into one folder of the cache.

    `transitive` asks Maven for everything the artifacts need. Without it exactly the artifacts are
    fetched: Spark's parent POM names a repository that is not reached everywhere, and resolving
    through it fails. `without` names jars (by a pattern on the file name) that must not be there.
    """

    name: str
    artifacts: tuple[str, ...]  # "group:artifact:version"
    transitive: bool = True
    without: tuple[str, ...] = ()


HADOOP_VERSION = "3.4.2"

HDFS = Bundle(
    name=f"hdfs-{HADOOP_VERSION}",
    artifacts=(
        f"org.apache.hadoop:hadoop-hdfs:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-hdfs-client:{HADOOP_VERSION}",
        f"org.apache.hadoop:hadoop-common:{HADOOP_VERSION}",
    ),
    without=("netty-*-osx-*.jar", "netty-*-linux-riscv64.jar"),
)
