"""Every version that the test servers run, and nothing else: to change one, change it here.

Only what is asked for by name is pinned; what those need (`transitive`) follows from their own
POMs, which never change once published.
"""

from __future__ import annotations

from beadline.environment.maven import Bundle

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

KAFKA_VERSION = "4.3.0"

KAFKA = Bundle(
    name=f"kafka-{KAFKA_VERSION}",
    artifacts=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        # Kafka's own download has it, its POM does not: without it the broker logs nothing.
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
)

# 2.6.2 and later have no thrift jar in some mirrors.
HBASE_VERSION = "2.6.1"

HBASE = Bundle(
    name=f"hbase-{HBASE_VERSION}",
    artifacts=(
        f"org.apache.hbase:hbase-server:{HBASE_VERSION}",
        f"org.apache.hbase:hbase-thrift:{HBASE_VERSION}",
    ),
    # An old servlet API on the class path hides the one that the web server inside needs.
    without=("servlet-api-2.5*.jar",),
)
