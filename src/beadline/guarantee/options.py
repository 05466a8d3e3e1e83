"""The options that Spark's streaming sources know. Pure.

Spark accepts any option silently: with ``maxFilesPerTriger`` an epoch simply has no bound.
So a name that is close to a known one is refused and the known one suggested; any other unknown
name gets a warning, because it may be an option of a newer Spark or of a file system.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Iterator

from beadline.errors import BadSetting

logger = logging.getLogger("beadline")

# So alike, of 1, are a word and its misspelling; `transaction.timeout.ms` is none of
# `session.timeout.ms`.
_ALIKE = 0.85


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILES = _words(
    """
    path paths basePath pathGlobFilter recursiveFileLookup modifiedBefore modifiedAfter
    ignoreCorruptFiles ignoreMissingFiles
    maxFilesPerTrigger maxBytesPerTrigger maxFileAge maxCachedFiles discardCachedInputRatio
    latestFirst fileNameOnly cleanSource sourceArchiveDir
    """
)
_TIMES = _words("dateFormat timeFormat timestampFormat timestampNTZFormat timeZone locale")
_RECORDS = _words(
    """
    charset columnNameOfCorruptRecord compression enableDateTimeParsingFallback encoding lineSep
    mode multiLine samplingRatio singleVariantColumn
    """
)
_CSV = _words(
    """
    charToEscapeQuoteEscaping codec columnPruning comment delimiter emptyValue enforceSchema escape
    escapeQuotes extension header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema
    inputBufferSize maxCharsPerColumn maxColumns nanValue negativeInf nullValue positiveInf
    preferDate quote quoteAll sep unescapedQuoteHandling
    """
)
_JSON = _words(
    """
    allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers
    allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames
    dropFieldIfAllNull ignoreNullFields inferTimestamp preferDate prefersDecimal pretty
    primitivesAsString sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint
    """
)
_XML = _words(
    """
    arrayElementName attributePrefix declaration excludeAttribute ignoreNamespace
    ignoreSurroundingSpaces indent inferSchema nullValue preferDate prefersDecimal rootTag rowTag
    rowValidationXSDPath useLegacyXMLParser validateName valueTag wildcardColName
    """
)
_AVRO = _words(
    """
    avroSchema avroSchemaUrl compression datetimeRebaseMode enableStableIdentifiersForUnionType
    ignoreExtension mode positionalFieldMatching recordName recordNamespace recursiveFieldMaxDepth
    stableIdentifierPrefixForUnionType
    """
)
_COLUMNS = _words("compression datetimeRebaseMode int96RebaseMode mergeSchema")
_KAFKA = _words(
    """
    assign subscribe subscribePattern startingOffsets startingTimestamp startingOffsetsByTimestamp
    startingOffsetsByTimestampStrategy endingOffsets endingTimestamp endingOffsetsByTimestamp
    failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
    groupIdPrefix includeHeaders beadline.group
    """
)
# Of Kafka's consumer, which has them under `kafka.`.
_CONSUMER = _words(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
    bootstrap.servers check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics
    fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms interceptor.classes internal.leave.group.on.close
    internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms
    retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
    session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type value.deserializer
    """
)
# By the name of the source. For a source that is not listed, no option is checked.
KNOWN: dict[str, frozenset[str]] = {
    "csv": _FILES | _RECORDS | _TIMES | _CSV,
    "json": _FILES | _RECORDS | _TIMES | _JSON,
    "xml": _FILES | _RECORDS | _TIMES | _XML,
    "text": _FILES | _words("compression encoding lineSep wholetext"),
    "parquet": _FILES | _COLUMNS | {"parquet.compression"},
    "orc": _FILES | _COLUMNS | {"orc.compress"},
    "avro": _FILES | _AVRO,
    "binaryfile": _FILES,
    "kafka": _KAFKA | frozenset(f"kafka.{name}" for name in _CONSUMER),
    "rate": _words("rowsPerSecond rampUpTime numPartitions"),
    "rate-micro-batch": _words("rowsPerBatch numPartitions startTimestamp advanceMillisPerBatch"),
    "socket": _words("host port includeTimestamp"),
}


def check_options(source: str, names: Iterable[str], where: str) -> None:
    """Raise on a misspelt option of a source, and warn about any other unknown option.

    ``where`` says whose options they are. Values are never shown: they may be secret.
    """
    for name, meant in unknown(source, names):
        if meant is not None:
            raise BadSetting(
                f"{where}: Spark's {source} source has no option {name!r}, and would ignore it "
                f"silently. Did you mean {meant!r}? Nothing was written."
            )
        if "." not in name:  # with one, it is a setting of a file system or of a client library
            logger.warning(
                "%s: Spark's %s source has no option %r known to Beadline, and Spark ignores "
                "unknown options",
                where,
                source,
                name,
            )


def unknown(source: str, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option that the source does not know, with the one probably meant, if any.

    >>> list(unknown("json", ["multiline", "maxFilesPerTriger", "color"]))
    [('maxFilesPerTriger', 'maxFilesPerTrigger'), ('color', None)]
    """
    known = {name.lower(): name for name in KNOWN.get(source.lower(), ())}
    for name in names if known else ():
        if name.lower() not in known:
            full = f"kafka.{name.lower()}"  # the prefix is what is forgotten most
            near = (
                [full]
                if full in known
                else difflib.get_close_matches(name.lower(), known, 1, _ALIKE)
            )
            yield name, known[near[0]] if near else None
