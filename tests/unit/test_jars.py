"""Which jars a connector needs, and how a session gets them; a stand-in plays `mvn`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from beadline.environment import doctor, jars
from beadline.errors import BadSetting, JarsUnavailable

MATCHING = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.9.1"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.1"

# Has every artifact but those that are named; writes down each run.
MAVEN = """\
#!{python}
import re, sys
from pathlib import Path
pom = Path(sys.argv[sys.argv.index("--file") + 1]).read_text()
Path({log!r}).open("a").write("run\\n")
names = re.findall("<artifactItem>.*?<artifactId>(.*?)</artifactId><version>(.*?)</version>", pom)
if any(f"{{name}}:{{version}}" in {absent!r} for name, version in names):
    print("[ERROR] Could not find artifact")
    sys.exit(1)
folder = Path(next(a for a in sys.argv if a.startswith("-DoutputDirectory=")).split("=", 1)[1])
folder.mkdir()
for name, version in names:
    (folder / f"{{name}}-{{version}}.jar").write_bytes(b"jar")
"""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of the stand-in's runs; cache, PATH, Spark's version and settings are the test's."""
    monkeypatch.setattr(jars, "spark_version", lambda: "4.9.1")
    monkeypatch.setenv("BEADLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    for folder in ("bin", "conf"):
        (tmp_path / folder).mkdir()
    log = tmp_path / "runs"
    log.touch()
    return log


def stand_in(runs: Path, *absent: str) -> None:
    names = [coordinate.partition(":")[2] for coordinate in absent]
    script = runs.parent / "bin" / "mvn"
    script.write_text(MAVEN.format(python=sys.executable, log=str(runs), absent=names))
    script.chmod(0o755)


def names(value: str) -> list[str]:
    return [Path(jar).name for jar in value.split(",")]


def test_the_matching_version_comes_first(runs: Path) -> None:
    stand_in(runs)
    assert names(jars.spark_jars("kafka")) == [
        "commons-pool2-2.12.1.jar",
        "kafka-clients-3.9.2.jar",
        "spark-sql-kafka-0-10_2.13-4.9.1.jar",
        "spark-token-provider-kafka-0-10_2.13-4.9.1.jar",
    ]
    assert runs.read_text().count("run") == 1


def test_the_known_good_one_if_it_cannot_be_had_and_no_asking_again(runs: Path) -> None:
    stand_in(runs, MATCHING)
    first = jars.spark_jars("kafka")
    assert "spark-token-provider-kafka-0-10_2.13-4.0.0.jar" in names(first)
    assert "spark-sql-kafka-0-10_2.13-4.9.1.jar" in names(first)
    assert jars.spark_jars("kafka") == first
    assert runs.read_text().count("run") == 2


def test_the_error_of_a_failed_download_names_the_alternatives(runs: Path) -> None:
    stand_in(runs, PACKAGE)
    with pytest.raises(JarsUnavailable, match=rf"(?s)Could not find.*packages to {PACKAGE}\."):
        jars.spark_jars("kafka")


def test_another_spark_is_another_folder() -> None:
    new, old = (jars.bundles("kafka", version)[0] for version in ("4.9.1", "4.9.0"))
    assert new != old
    assert all(not bundle.transitive for bundle in (new, old))
    assert not any("{" in artifact for artifact in new.artifacts)


def test_without_maven_spark_fetches_itself() -> None:
    asked = jars.with_connectors({"spark.jars.packages": "a:b:1"}, ["kafka"])
    assert asked == {"spark.jars.packages": f"a:b:1,{PACKAGE}"}


def test_without_maven_but_in_the_cache(runs: Path) -> None:
    stand_in(runs)
    value = jars.spark_jars("kafka")
    (runs.parent / "bin" / "mvn").unlink()
    assert jars.with_connectors({}, ["kafka"]) == {"spark.jars": value}


def test_added_to_what_the_user_set(runs: Path) -> None:
    stand_in(runs)
    asked = jars.with_connectors({"spark.jars": "mine.jar", "x": "y"}, ["kafka"])
    assert names(asked["spark.jars"])[:2] == ["mine.jar", "commons-pool2-2.12.1.jar"]
    assert asked["x"] == "y"
    assert jars.with_connectors({"x": "y"}, []) == {"x": "y"}


@pytest.mark.parametrize(
    "line", ["spark.jars  old.jar", "spark.jars=old.jar", "spark.jars\told.jar"]
)
def test_added_to_the_defaults_file(runs: Path, line: str) -> None:
    stand_in(runs)
    text = f"# spark.jars no.jar\nspark.jars.packages a:b:1\n{line}\n"
    (runs.parent / "conf" / "spark-defaults.conf").write_text(text)
    asked = jars.with_connectors({}, ["kafka"])
    assert names(asked["spark.jars"])[:2] == ["old.jar", "commons-pool2-2.12.1.jar"]


@pytest.mark.parametrize("key", ["spark.jars", "spark.jars.packages"])
def test_who_brings_his_own_keeps_it(key: str) -> None:
    asked = {key: "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.0"}
    assert jars.with_connectors(asked, ["kafka"]) == asked


def test_unknown_connector() -> None:
    with pytest.raises(BadSetting, match=r"no Spark connector 'pulsar'.*known: 'kafka'"):
        jars.spark_jars("pulsar")


def test_the_doctor_reports_a_connector_that_was_fetched(runs: Path) -> None:
    assert doctor.connector("kafka").status == "absent"
    stand_in(runs)
    jars.spark_jars("kafka")
    assert doctor.connector("kafka").status == "ok"
